// SPDX-License-Identifier: Apache-2.0
#pragma once

// Each family of the header: a part that calls its functions. What parts call is noted (calls.h).

void call_each_plainly(void);  // each of a manager that takes no array and gives no handle
void call_versions(void);
void call_specs_and_storage(void);
void call_sequences(void);
void call_steps(void);
void call_room(void);
void call_transfers(void);
void call_questions(void);
void call_op_log(void);
void call_kernels(void);
void call_attention(void);
void call_token_store(void);
void call_block_store(void);
void call_gather_sequence(void);

// SPDX-License-Identifier: Apache-2.0
#pragma once

// The compiled kernels of src/cuda/move_module.cu, in the program.
extern "C" const unsigned char kvfolio_move_image[];

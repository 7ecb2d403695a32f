// SPDX-License-Identifier: Apache-2.0
// A source for the target that compiles test_headers.h.

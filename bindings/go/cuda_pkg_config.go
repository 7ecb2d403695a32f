// SPDX-License-Identifier: Apache-2.0

//go:build cuda && !kvfolio_flags

package kvfolio

// #cgo pkg-config: kvfolio_cuda
import "C"

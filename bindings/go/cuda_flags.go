// SPDX-License-Identifier: Apache-2.0

//go:build cuda && kvfolio_flags

package kvfolio

// #cgo LDFLAGS: -lkvfolio_cuda
import "C"

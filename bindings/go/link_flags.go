// SPDX-License-Identifier: Apache-2.0

//go:build kvfolio_flags

package kvfolio

// With this tag CGO_CFLAGS and CGO_LDFLAGS of the environment say where kvfolio is, and pkg-config
// is not asked: for a library in its build directory.

// #cgo LDFLAGS: -lkvfolio
import "C"

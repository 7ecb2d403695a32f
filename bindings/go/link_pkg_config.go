// SPDX-License-Identifier: Apache-2.0

//go:build !kvfolio_flags

package kvfolio

// #cgo pkg-config: kvfolio
import "C"

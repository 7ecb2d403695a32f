// SPDX-License-Identifier: Apache-2.0

//go:build !kvfolio_flags

package ctier

// Only the header: nothing of the library is called.

// #cgo pkg-config: kvfolio_tiers
import "C"

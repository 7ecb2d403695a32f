// SPDX-License-Identifier: Apache-2.0

//go:build kvfolio_flags

package tiers

// As in package kvfolio: CGO_CFLAGS and CGO_LDFLAGS of the environment say where the libraries are.

// #cgo LDFLAGS: -lkvfolio_tiers -lkvfolio
import "C"

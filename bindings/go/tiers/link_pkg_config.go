// SPDX-License-Identifier: Apache-2.0

//go:build !kvfolio_flags

package tiers

// #cgo pkg-config: kvfolio_tiers
import "C"

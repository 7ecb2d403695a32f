// SPDX-License-Identifier: Apache-2.0

// Package bridge is what package tiers may see of package kvfolio that users may not: types of cgo
// are another type in each package, and handles are not exported. Package kvfolio fills it in when
// it is initialised. Pointers are to structs of C, in memory of Go without pointers to memory of Go.
package bridge

import "unsafe"

// Prompt is what the calls about a prompt take besides the tokens.
type Prompt struct {
	Root     unsafe.Pointer // *C.kvfolio_root
	Media    unsafe.Pointer // *C.kvfolio_media_span
	NumMedia int64
	Options  unsafe.Pointer // *C.kvfolio_open_options
}

var (
	// Manager returns the handle of a *kvfolio.Cache; nil of one that is nil or closed.
	Manager func(cache interface{}) unsafe.Pointer
	// PromptOf reads *kvfolio.OpenOptions.
	PromptOf func(options interface{}) (Prompt, error)
	// Groups returns one kvfolio_group_spec for each of []kvfolio.GroupSpec.
	Groups func(groups interface{}) unsafe.Pointer
	// Resource reads *kvfolio.MemoryResource.
	Resource func(resource interface{}) unsafe.Pointer
	// Error makes the error of a call that returned a code and wrote a kvfolio_error.
	Error func(code int32, from unsafe.Pointer) error
	// Complain is where finalizers write one line.
	Complain func(line string)
)

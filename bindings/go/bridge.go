// SPDX-License-Identifier: Apache-2.0

package kvfolio

// #include <kvfolio/kvfolio.h>
import "C"

import (
	"unsafe"

	"github.com/kvfolio/kvfolio/bindings/go/internal/bridge"
)

// Package tiers uses a cache, and what is opened in it, by its handle.
func init() {
	bridge.Manager = func(cache interface{}) unsafe.Pointer {
		return unsafe.Pointer(cache.(*Cache).p())
	}
	bridge.PromptOf = func(options interface{}) (bridge.Prompt, error) {
		p, err := options.(*OpenOptions).toC()
		return bridge.Prompt{Root: unsafe.Pointer(p.root), Media: unsafe.Pointer(p.media),
			NumMedia: int64(p.n), Options: unsafe.Pointer(p.options)}, err
	}
	bridge.Groups = func(groups interface{}) unsafe.Pointer {
		return unsafe.Pointer(&groupsToC(groups.([]GroupSpec))[0])
	}
	bridge.Resource = func(resource interface{}) unsafe.Pointer {
		return unsafe.Pointer(resource.(*MemoryResource).toC())
	}
	bridge.Error = func(code int32, from unsafe.Pointer) error {
		return errorOf(C.int32_t(code), (*C.kvfolio_error)(from))
	}
	bridge.Complain = func(line string) { complain(line) }
}

// SPDX-License-Identifier: Apache-2.0

package kvfolio

// #include <kvfolio/kvfolio.h>
import "C"

import "unsafe"

// DType is an element type. 0 is the default of a field: F32.
type DType int32

// Element types.
const (
	F64  DType = C.KVFOLIO_F64
	F32  DType = C.KVFOLIO_F32
	F16  DType = C.KVFOLIO_F16
	BF16 DType = C.KVFOLIO_BF16
	Int8 DType = C.KVFOLIO_INT8 // of caches only: with an f32 scale for each token and head
	E4M3 DType = C.KVFOLIO_E4M3 // so too: e4m3fn of FP8; not in format Granule
	// Opaque is a byte that only the engine knows: HeadDimK of them for each token and head. They are
	// copied in and out as RowsBytes; attention and conversion refuse them. Not in format Granule.
	Opaque DType = C.KVFOLIO_OPAQUE
)

// bytes of an element; 0 is f32.
func (d DType) bytes() int {
	switch d {
	case F64:
		return 8
	case F16, BF16:
		return 2
	case Int8, E4M3, Opaque:
		return 1
	}
	return 4
}

// Format says how the tokens of a block lie in memory.
type Format int32

// Formats; spec.h draws them.
const (
	HND     Format = C.KVFOLIO_HND
	NHD     Format = C.KVFOLIO_NHD
	Granule Format = C.KVFOLIO_GRANULE
)

// Kind says what a query reads.
type Kind int32

// Kinds of attention.
const (
	Full          Kind = C.KVFOLIO_FULL           // every earlier token
	SlidingWindow Kind = C.KVFOLIO_SLIDING_WINDOW // itself, the window-1 tokens before it, the sinks
)

// GroupSpec is a group of layers with the same shape (GroupSpec in spec.h, which says the limits).
type GroupSpec struct {
	NumLayers    int // 0: 1
	NumKVHeads   int // 0: 1
	HeadDimK     int // elements of a row of K
	HeadDimV     int // 0: there is no V
	VIsPrefixOfK bool
	BlockSize    int // tokens; 0: 16
	DType        DType
	Format       Format
	Kind         Kind
	Window       int // SlidingWindow: tokens that a query reads, itself included
	NumSinks     int
	NumBlocks    int
	// SlidingWindow: tokens kept behind the window, for Truncate. A stop string of n tokens takes
	// n - 1, one more for each step that may be in flight behind it, and the accepted tokens behind.
	Rewind int
}

func (g *GroupSpec) toC() C.kvfolio_group_spec {
	return C.kvfolio_group_spec{
		struct_size:      C.sizeof_kvfolio_group_spec,
		num_layers:       i32(g.NumLayers),
		num_kv_heads:     i32(g.NumKVHeads),
		head_dim_k:       i32(g.HeadDimK),
		head_dim_v:       i32(g.HeadDimV),
		v_is_prefix_of_k: b32(g.VIsPrefixOfK),
		block_size:       i32(g.BlockSize),
		dtype:            C.int32_t(g.DType),
		format:           C.int32_t(g.Format),
		kind:             C.int32_t(g.Kind),
		window:           i32(g.Window),
		num_sinks:        i32(g.NumSinks),
		num_blocks:       i32(g.NumBlocks),
		rewind:           i32(g.Rewind),
	}
}

func groupOf(c *C.kvfolio_group_spec) GroupSpec {
	return GroupSpec{
		NumLayers:    int(c.num_layers),
		NumKVHeads:   int(c.num_kv_heads),
		HeadDimK:     int(c.head_dim_k),
		HeadDimV:     int(c.head_dim_v),
		VIsPrefixOfK: c.v_is_prefix_of_k != 0,
		BlockSize:    int(c.block_size),
		DType:        DType(c.dtype),
		Format:       Format(c.format),
		Kind:         Kind(c.kind),
		Window:       int(c.window),
		NumSinks:     int(c.num_sinks),
		NumBlocks:    int(c.num_blocks),
		Rewind:       int(c.rewind),
	}
}

// groupsToC returns at least one struct, so that there is an address.
func groupsToC(groups []GroupSpec) []C.kvfolio_group_spec {
	out := make([]C.kvfolio_group_spec, len(groups), len(groups)+1)
	for i := range groups {
		out[i] = groups[i].toC()
	}
	return out[:len(groups)+1]
}

// GroupLayout says where the bytes of a group lie, in bytes from its base (spec.h).
type GroupLayout struct {
	BlockStride          int64
	LayerStride          int64
	KHeadStride          int64
	KTokenStride         int64
	VOffset              int64
	VHeadStride          int64
	VTokenStride         int64
	KScaleOffset         int64
	VScaleOffset         int64
	ScaleHeadStride      int64
	ScaleTokenStride     int64
	PayloadBytesPerToken int64
	BytesPerBlock        int64
	TotalBytes           int64
}

// PlanLayouts checks the groups and returns one layout for each.
func PlanLayouts(groups []GroupSpec) ([]GroupLayout, error) {
	specs := groupsToC(groups)
	layouts := make([]C.kvfolio_group_layout, len(groups)+1)
	for i := range layouts {
		layouts[i].struct_size = C.uint32_t(unsafe.Sizeof(layouts[i]))
	}
	s := take()
	code := C.kvfolio_plan_layouts(&specs[0], i32(len(groups)), &layouts[0], &s.err)
	if err := s.give(code, false, ""); err != nil {
		return nil, err
	}
	out := make([]GroupLayout, len(groups))
	for i := range out {
		c := &layouts[i]
		out[i] = GroupLayout{
			BlockStride:          int64(c.block_stride),
			LayerStride:          int64(c.layer_stride),
			KHeadStride:          int64(c.k_head_stride),
			KTokenStride:         int64(c.k_token_stride),
			VOffset:              int64(c.v_offset),
			VHeadStride:          int64(c.v_head_stride),
			VTokenStride:         int64(c.v_token_stride),
			KScaleOffset:         int64(c.k_scale_offset),
			VScaleOffset:         int64(c.v_scale_offset),
			ScaleHeadStride:      int64(c.scale_head_stride),
			ScaleTokenStride:     int64(c.scale_token_stride),
			PayloadBytesPerToken: int64(c.payload_bytes_per_token),
			BytesPerBlock:        int64(c.bytes_per_block),
			TotalBytes:           int64(c.total_bytes),
		}
	}
	return out, nil
}

// Fit returns the groups with NumBlocks filled in, so that all take at most `bytes`. What NumBlocks
// is before are weights; 0 in all groups: room for equally many tokens.
func Fit(groups []GroupSpec, bytes int64) ([]GroupSpec, error) {
	specs := groupsToC(groups)
	s := take()
	code := C.kvfolio_fit(&specs[0], i32(len(groups)), C.int64_t(bytes), &s.err)
	if err := s.give(code, false, ""); err != nil {
		return nil, err
	}
	out := append([]GroupSpec(nil), groups...)
	for i := range out {
		out[i].NumBlocks = int(specs[i].num_blocks)
	}
	return out, nil
}

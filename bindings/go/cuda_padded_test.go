// SPDX-License-Identifier: Apache-2.0

//go:build cuda

package kvfolio

import (
	"strings"
	"testing"
)

// paddedBatch has two sequences at most, of three blocks and two queries; the numbers lie on the device,
// too.
type paddedBatch struct{ starts, lens []int32 }

// filled is a storage on the device with numbers in all blocks.
func (m *machine) filled() *View {
	s, view := m.storage(true)
	values := deviceFloats(s.BlockImageBytes(0)*6/4, 23)
	must(m.t, s.WriteBlocks(0, []int32{0, 1, 2, 3, 4, 5}, bytesOf(values)))
	return view
}

func says(t *testing.T, err error, code Code, words string) {
	t.Helper()
	if e := wants(t, err, code); !strings.Contains(e.Message, words) {
		t.Fatalf("%v, wanted: %s", e, words)
	}
}

// A graph that plans on the device has, for each batch within the capacity, the bits of a plan of its own
// and the image of the host's padded plan; a larger batch is refused by number on the host, and reported
// by the word of the device.
func TestOneGraphServesEveryBatchWithinItsCapacity(t *testing.T) {
	m := newMachine(t)
	view, stream := m.filled(), m.stream.Handle()
	batches := []paddedBatch{{[]int32{0, 2}, []int32{10}}, {[]int32{0, 1, 3}, []int32{3, 12}},
		{[]int32{0}, nil}, {[]int32{0, 0, 1}, []int32{7, 9}}}
	larger := paddedBatch{[]int32{0, 1, 2}, []int32{3, 13}}
	got := make([]float32, 4*4*16)
	q, out := m.upload(bytesOf(deviceFloats(len(got), 11))), m.upload(bytesOf(got))
	table := m.upload(bytesOf([]int32{4, 1, 2, 0, 3, 5}))
	starts, lens := m.upload(make([]byte, 12)), m.upload(make([]byte, 8))
	counts, word := m.upload(make([]byte, 4)), []uint64{CUDANoEntry}
	fault := m.upload(bytesOf(word))
	callOf := func(b paddedBatch) *DeviceAttention {
		rows := DeviceRows{Data: q, DType: F32, NumTokens: int(b.starts[len(b.starts)-1]), NumHeads: 4,
			HeadDim: 16}
		to := rows
		to.Data = out
		return &DeviceAttention{Cache: view, QueryStart: b.starts, KVLens: b.lens, BlockTable: table,
			BlockTableStride: 3, QueryStartThere: starts, KVLensThere: lens, Q: rows, Out: to}
	}
	tell := func(b paddedBatch) {
		must(t, m.stream.Synchronize())
		must(t, m.memory.CopyIn(starts, make([]byte, 12)))
		must(t, m.memory.CopyIn(starts, bytesOf(b.starts)))
		if len(b.lens) > 0 {
			must(t, m.memory.CopyIn(lens, bytesOf(b.lens)))
		}
		must(t, m.memory.CopyIn(counts, bytesOf([]int32{int32(len(b.lens))})))
	}
	// What is there once the stream has passed; zeros from then on.
	rows := func() []float32 {
		m.download(bytesOf(got), out)
		must(t, m.memory.CopyIn(out, make([]byte, 4*len(got))))
		return append([]float32(nil), got...)
	}
	capacity := AttendCapacity{MaxSequences: 2, MaxSequenceTokens: 12, MaxQueries: 2}
	call := callOf(batches[0])
	plan, err := m.kernels.PlanAttendPadded(call, capacity)
	must(t, err)
	defer plan.Close()
	is, err := plan.Capacity()
	must(t, err)
	equal(t, "capacity", is, AttendCapacity{2, 12, 24, 2})
	if !strings.HasPrefix(plan.Explain(), "cuda-sm90-general: cuda-") {
		t.Fatal(plan.Explain())
	}
	shape, err := plan.Shape()
	must(t, err)
	image := m.upload(make([]byte, len(plan.Image())))
	workspace := m.upload(make([]byte, plan.WorkspaceBytes()+1))
	graph, err := m.device.Capture(stream, func() error {
		if err := m.kernels.PlanOnDevice(call, plan, image, workspace, stream, counts, fault); err != nil {
			return err
		}
		return m.kernels.Attend(call, plan, image, workspace, stream)
	})
	must(t, err)
	defer graph.Close()
	for _, b := range batches {
		call := callOf(b)
		own, err := m.kernels.PlanAttend(call)
		must(t, err)
		tell(b)
		rows()
		if call.Q.NumTokens > 0 {
			ownImage := m.upload(own.Image())
			ownSpace := m.upload(make([]byte, own.WorkspaceBytes()+1))
			must(t, m.kernels.Attend(call, own, ownImage, ownSpace, stream))
		}
		want := rows()
		equal(t, "rows that are not 0", want[0] != 0, len(b.lens) > 0)
		host, err := m.kernels.PlanAttendPadded(call, capacity)
		must(t, err)
		hostShape, err := host.Shape()
		must(t, err)
		equal(t, "shape", hostShape, shape)
		must(t, plan.Check(call))
		must(t, graph.Launch(stream))
		equal(t, "rows", rows(), want)
		there := make([]byte, len(host.Image()))
		m.download(there, image)
		equal(t, "image", there, host.Image())
		m.download(bytesOf(word), fault)
		must(t, CUDAPlanFault(plan, word[0]))
		is, err := own.Capacity()
		must(t, err)
		equal(t, "capacity", is, AttendCapacity{MaxQueries: 1})
		says(t, own.Check(call), ErrFailedPrecondition, "not padded")
		says(t, m.kernels.PlanOnDevice(call, own, image, workspace, stream, counts, fault),
			ErrFailedPrecondition, "not padded")
		own.Close()
		host.Close()
	}
	over := callOf(larger)
	says(t, plan.Check(over), ErrInvalidArgument, "kv_lens[1] is 13")
	_, err = m.kernels.PlanAttendPadded(over, capacity)
	says(t, err, ErrInvalidArgument, "kv_lens[1] is 13")
	tell(larger)
	must(t, graph.Launch(stream))
	equal(t, "rows of an empty plan", rows(), make([]float32, len(got)))
	m.download(bytesOf(word), fault)
	says(t, CUDAPlanFault(plan, word[0]), ErrInvalidArgument, "sequence 1 of the batch on the device")
	capacity.MaxSequences = 0
	_, err = m.kernels.PlanAttendPadded(call, capacity)
	says(t, err, ErrInvalidArgument, "capacity.max_sequences is 0, allowed: 1")
	_, err = m.kernels.PlanAttendPadded(nil, capacity)
	wants(t, err, ErrInvalidArgument)
	wants(t, plan.Check(nil), ErrInvalidArgument)
	wants(t, m.kernels.PlanOnDevice(nil, plan, image, workspace, stream, 0, 0), ErrInvalidArgument)
	wrong := *call
	wrong.KVLens = nil
	_, err = m.kernels.PlanAttendPadded(&wrong, capacity)
	says(t, err, ErrInvalidArgument, "PlanAttendPadded: QueryStart has 2 entries, allowed: 1")
	says(t, plan.Check(&wrong), ErrInvalidArgument, "Check: QueryStart")
	says(t, m.kernels.PlanOnDevice(&wrong, plan, image, workspace, stream, 0, 0), ErrInvalidArgument,
		"PlanOnDevice: QueryStart")
	plan.Close()
	wants(t, plan.Check(call), ErrFailedPrecondition)
	wants(t, m.kernels.PlanOnDevice(call, plan, image, workspace, stream, 0, 0), ErrFailedPrecondition)
	wants(t, CUDAPlanFault(plan, 0), ErrFailedPrecondition)
}

func TestAPaddedBatchAttentionHasOneShapeAndRefusesWhatItsGraphCannotServe(t *testing.T) {
	m := newMachine(t)
	view, stream := m.filled(), m.stream.Handle()
	got := make([]float32, 2*4*16)
	q, out := m.upload(bytesOf(deviceFloats(len(got), 11))), m.upload(bytesOf(got))
	rowsAt := func(p DevicePointer, n int) DeviceRows {
		return DeviceRows{Data: p, DType: F32, NumTokens: n, NumHeads: 4, HeadDim: 16}
	}
	rows := func() []float32 {
		m.download(bytesOf(got), out)
		must(t, m.memory.CopyIn(out, make([]byte, 4*len(got))))
		return append([]float32(nil), got...)
	}
	options := BatchAttentionOptions{MaxSequences: 2, MaxPagesOfSequence: 3, WorkspaceBytes: 1 << 16}
	own, err := m.kernels.NewBatchAttention(options)
	must(t, err)
	defer own.Close()
	options.Padded, options.MaxTokens = true, 20
	b, err := m.kernels.NewBatchAttention(options)
	must(t, err)
	defer b.Close()
	step := BatchAttentionPlan{KVIndptr: []int32{0, 3, 4}, KVIndices: []int32{4, 1, 2, 0},
		KVLastPageLen: []int32{2, 3}, NumQOHeads: 4, QDataType: F32, ODataType: F32}
	shorter := step
	shorter.KVIndptr, shorter.KVLastPageLen = []int32{0, 2}, []int32{4}
	must(t, b.Plan(&step, view, stream))
	shape, err := b.Shape()
	must(t, err)
	equal(t, "shape", []int{shape.NumSequences, shape.NumRows}, []int{2, 2})
	graph, err := m.device.Capture(stream, func() error {
		return b.Run(rowsAt(q, 2), view, 0, rowsAt(out, 2), 0, stream)
	})
	must(t, err)
	defer graph.Close()
	for _, each := range []*BatchAttentionPlan{&step, &shorter} {
		n := len(each.KVLastPageLen)
		must(t, own.Plan(each, view, stream))
		must(t, own.Run(rowsAt(q, n), view, 0, rowsAt(out, n), 0, stream))
		want := rows()
		equal(t, "rows that are not 0", want[0] != 0, true)
		must(t, b.Plan(each, view, stream))
		again, err := b.Shape()
		must(t, err)
		equal(t, "shape", again, shape)
		must(t, graph.Launch(stream))
		equal(t, "rows", rows(), want)
	}
	wrong := step
	wrong.KVIndptr, wrong.KVIndices = []int32{0, 3, 6}, make([]int32, 6)
	says(t, b.Plan(&wrong, view, stream), ErrInvalidArgument,
		"the batch has 21 tokens of K and V, the capacity is 20: max_tokens")
	wrong = step
	wrong.SMScale = 0.5
	says(t, b.Plan(&wrong, view, stream), ErrInvalidArgument,
		"sm_scale is 0.5, that of the first padded plan is 0.25")
	wrong = step
	wrong.QOIndptr = []int32{0, 2, 3}
	says(t, b.Plan(&wrong, view, stream), ErrInvalidArgument,
		"sequence 0 has 2 queries, the capacity is 1: max_queries")
	options.MaxQueries = -1
	_, err = m.kernels.NewBatchAttention(options)
	says(t, err, ErrInvalidArgument, "max_queries is -1, allowed: 1 to 65536")
}

// SPDX-License-Identifier: Apache-2.0

//go:build cuda

package kvfolio

import (
	"math"
	"os"
	"strings"
	"testing"
	"unsafe"
)

// These run over libkvfolio_cuda as it is on this machine, which may have no driver; and, with
// KVFOLIO_FAKE_CUDA, over the one whose driver is none and runs kernels on the CPU (tests/fake_cuda):
// `check` runs them twice.

func init() {
	isCUDA = true
	withMethods = append(withMethods, (*CUDADevice)(nil), (*CUDAStream)(nil), (*CUDAEvent)(nil),
		(*CUDAPinned)(nil), (*CUDAMemory)(nil), (*CUDAKernels)(nil), (*CUDAAttendPlan)(nil),
		(*DevicePlan)(nil), (*PagedKV)(nil), (*BatchAttention)(nil), (*CUDAGraph)(nil))
}

const deviceTokens = 10

var deviceTable = []int32{4, 1, 2}

func deviceGroup() []GroupSpec {
	return []GroupSpec{{NumKVHeads: 2, HeadDimK: 16, HeadDimV: 16, BlockSize: 4, NumBlocks: 6}}
}

func deviceSlots() []int32 {
	var slots []int32
	for i := 0; i < deviceTokens; i++ {
		slots = append(slots, deviceTable[i/4]*4+int32(i%4))
	}
	return slots
}

func deviceFloats(n, divisor int) []float32 {
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i%divisor)/8 - 1
	}
	return values
}

func bytesOf[T float32 | int32 | uint64](values []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), len(values)*int(unsafe.Sizeof(values[0])))
}

// machine is a device of the driver that is none.
type machine struct {
	t       *testing.T
	device  *CUDADevice
	kernels *CUDAKernels
	memory  *CUDAMemory
	stream  *CUDAStream
}

func newMachine(t *testing.T) *machine {
	if os.Getenv("KVFOLIO_FAKE_CUDA") == "" {
		t.Skip("KVFOLIO_FAKE_CUDA is not set")
	}
	m := &machine{t: t}
	var err error
	m.device, err = OpenCUDA(0)
	must(t, err)
	t.Cleanup(func() { must(t, m.device.Close()) })
	m.kernels, err = m.device.LoadKernels(true)
	must(t, err)
	t.Cleanup(m.kernels.Close)
	m.memory, err = m.device.NewMemory(&CUDAMemoryOptions{StagingBytes: 4096, Kernels: m.kernels})
	must(t, err)
	t.Cleanup(m.memory.Close)
	m.stream, err = m.device.NewStream()
	must(t, err)
	t.Cleanup(m.stream.Close)
	return m
}

func (m *machine) upload(bytes []byte) DevicePointer {
	p, err := m.memory.Allocate(len(bytes))
	must(m.t, err)
	m.t.Cleanup(func() { m.memory.Deallocate(p, len(bytes)) })
	must(m.t, m.memory.CopyIn(p, bytes))
	return p
}

func (m *machine) download(to []byte, from DevicePointer) {
	must(m.t, m.stream.Synchronize())
	must(m.t, m.memory.CopyOut(to, from))
}

// storage has zeros in all blocks, on the device or on the host.
func (m *machine) storage(onDevice bool) (*Storage, *View) {
	var resource *MemoryResource
	if onDevice {
		var err error
		resource, err = m.memory.Resource()
		must(m.t, err)
	}
	s, err := NewStorage(deviceGroup(), resource)
	must(m.t, err)
	m.t.Cleanup(s.Close)
	must(m.t, s.WriteBlocks(0, []int32{0, 1, 2, 3, 4, 5}, make([]byte, len(images(m.t, s)))))
	v, err := s.View(0, -1)
	must(m.t, err)
	m.t.Cleanup(v.Close)
	return s, v
}

func images(t *testing.T, s *Storage) []byte {
	out := make([]byte, s.BlockImageBytes(0)*6)
	must(t, s.ReadBlocks(0, []int32{0, 1, 2, 3, 4, 5}, out))
	return out
}

func TestAMachineWithoutADriverSaysWhatIsMissing(t *testing.T) {
	err := CUDAAvailable()
	if err == nil {
		t.Skip("there is a driver and a device")
	}
	said := wants(t, err, ErrUnavailable).Message
	if len(said) < 20 {
		t.Fatal(said)
	}
	_, err = CUDANumDevices()
	equal(t, "sentence", wants(t, err, ErrUnavailable).Message, said)
	device, err := OpenCUDA(0)
	equal(t, "sentence", wants(t, err, ErrUnavailable).Message, said)
	must(t, device.Close()) // nil is nothing
	if CUDAKernelRevision() < 1 {
		t.Fatal(CUDAKernelRevision())
	}
}

func TestADeviceSaysWhatItIs(t *testing.T) {
	m := newMachine(t)
	n, err := CUDANumDevices()
	must(t, err)
	equal(t, "devices", n, 2)
	info, err := m.device.Info()
	must(t, err)
	equal(t, "info", info, CUDADeviceInfo{Ordinal: 0, CapabilityMajor: 9, NumMultiprocessors: 132})
	equal(t, "name", m.device.Name(), "Fake 0")
	equal(t, "target", m.device.Target(), "cuda-sm90")
	must(t, m.device.Status())
	must(t, m.device.Synchronize())
	_, err = OpenCUDA(2)
	wants(t, err, ErrInvalidArgument)
}

func TestMovesOnADeviceWriteTheBytesOfTheCPU(t *testing.T) {
	m := newMachine(t)
	onDevice, device := m.storage(true)
	onHost, host := m.storage(false)
	equal(t, "kind", onDevice.MemoryKind(), Device)
	k, v := deviceFloats(deviceTokens*32, 23), deviceFloats(deviceTokens*32, 19)
	must(t, AppendRows(host, 0, RowsF32(k, deviceTokens, 2, 16), RowsF32(v, deviceTokens, 2, 16),
		deviceSlots()))
	must(t, CopyBlocks(host, []int32{4, 1}, []int32{0, 3}))

	rows := DeviceRows{Data: m.upload(bytesOf(k)), DType: F32, NumTokens: deviceTokens, NumHeads: 2,
		HeadDim: 16}
	vRows := rows
	vRows.Data = m.upload(bytesOf(v))
	word := []uint64{CUDANoEntry}
	fault := m.upload(bytesOf(word))
	stream := m.stream.Handle()
	must(t, m.kernels.Append(device, 0, rows, vRows, m.upload(bytesOf(deviceSlots())), deviceTokens,
		stream, fault))
	must(t, m.kernels.CopyBlocks(device, []int32{4}, []int32{0}, stream))
	must(t, m.kernels.ConvertBlocks(device, device, []int32{1}, []int32{3}, stream))
	m.download(bytesOf(word), fault)
	must(t, CUDASlotFault(device, word[0]))
	equal(t, "images", images(t, onDevice), images(t, onHost))

	back := rows
	got := make([]float32, len(k))
	back.Data = m.upload(bytesOf(got))
	must(t, m.kernels.Gather(device, m.upload(bytesOf(deviceTable)), 3,
		GatherOptions{Length: deviceTokens, Count: deviceTokens}, back, DeviceRows{}, stream, fault))
	m.download(bytesOf(got), back.Data)
	equal(t, "gathered", got, k)
	m.download(bytesOf(word), fault)
	must(t, CUDATableFault(device, word[0]))
	must(t, m.memory.TakeError())
}

func TestAWrongSlotIsNamedByItsWord(t *testing.T) {
	m := newMachine(t)
	_, view := m.storage(true)
	rows := DeviceRows{Data: m.upload(make([]byte, 128)), DType: F32, NumTokens: 1, NumHeads: 2,
		HeadDim: 16}
	word := []uint64{CUDANoEntry}
	fault := m.upload(bytesOf(word))
	slots := m.upload(bytesOf([]int32{24}))
	must(t, m.kernels.Append(view, 0, rows, rows, slots, 1, m.stream.Handle(), fault))
	m.download(bytesOf(word), fault)
	e := wants(t, CUDASlotFault(view, word[0]), ErrInvalidArgument)
	if !strings.Contains(e.Message, "slots[0] is 24") {
		t.Fatal(e)
	}
	wants(t, CUDATableFault(view, word[0]), ErrInvalidArgument)
	e = wants(t, m.kernels.Append(view, 0, DeviceRows{Data: rows.Data, DType: F32, NumTokens: 1,
		NumHeads: 3, HeadDim: 16}, rows, slots, 1, 0, 0), ErrInvalidArgument)
	if !strings.Contains(e.Message, "heads") {
		t.Fatal(e)
	}
	wants(t, m.kernels.CopyBlocks(view, []int32{1}, nil, 0), ErrInvalidArgument)
	wants(t, m.kernels.CopyBlocks(nil, nil, nil, 0), ErrFailedPrecondition)
}

func TestAttentionOnADeviceIsNearThatOfTheCPU(t *testing.T) {
	m := newMachine(t)
	onDevice, device := m.storage(true)
	onHost, host := m.storage(false)
	k, v := deviceFloats(deviceTokens*32, 23), deviceFloats(deviceTokens*32, 19)
	must(t, AppendRows(host, 0, RowsF32(k, deviceTokens, 2, 16), RowsF32(v, deviceTokens, 2, 16),
		deviceSlots()))
	must(t, onDevice.WriteBlocks(0, []int32{0, 1, 2, 3, 4, 5}, images(t, onHost)))
	q, want := deviceFloats(2*4*16, 7), make([]float32, 2*4*16)
	bytes, err := AttentionWorkspaceBytes(host, 4, deviceTokens, TargetAuto, 1)
	must(t, err)
	starts, lens := []int32{0, 2}, []int32{deviceTokens}
	must(t, Attend(&Attention{Cache: host, Batch: Batch{QueryStart: starts, KVLens: lens,
		BlockTable: deviceTable, BlockTableStride: 3}, Q: RowsF32(q, 2, 4, 16),
		Out: RowsF32(want, 2, 4, 16), Workspace: make([]byte, bytes)}))

	got := make([]float32, len(want))
	rows := DeviceRows{Data: m.upload(bytesOf(q)), DType: F32, NumTokens: 2, NumHeads: 4, HeadDim: 16}
	out := rows
	out.Data = m.upload(bytesOf(got))
	call := &DeviceAttention{Cache: device, QueryStart: starts, KVLens: lens,
		BlockTable: m.upload(bytesOf(deviceTable)), BlockTableStride: 3,
		QueryStartThere: m.upload(bytesOf(starts)), KVLensThere: m.upload(bytesOf(lens)), Q: rows,
		Out: out}
	plan, err := m.kernels.PlanAttend(call)
	must(t, err)
	defer plan.Close()
	equal(t, "target", plan.Target(), "cuda-sm90-general")
	if plan.ZeroedBytes() > plan.WorkspaceBytes() {
		t.Fatal(plan.ZeroedBytes(), plan.WorkspaceBytes())
	}
	pinned, err := m.device.NewPinned(len(plan.Image()))
	must(t, err)
	defer pinned.Close()
	equal(t, "pinned", len(pinned.Bytes()), len(plan.Image()))
	image := m.upload(make([]byte, len(plan.Image())))
	workspace := m.upload(make([]byte, plan.WorkspaceBytes()+1))
	must(t, m.kernels.Upload(plan, pinned, image, workspace, m.stream.Handle()))
	must(t, m.kernels.Attend(call, plan, image, workspace, m.stream.Handle()))
	m.download(bytesOf(got), out.Data)
	for i := range got {
		if math.Abs(float64(got[i]-want[i])) > 1e-5 {
			t.Fatal(i, got[i], want[i])
		}
	}
	m.batchAttention(device, host, call, plan, out, got)
	wrong := *call
	wrong.KVLens = nil
	_, err = m.kernels.PlanAttend(&wrong)
	wants(t, err, ErrInvalidArgument)
	wrong = *call
	wrong.Options.Target = TargetReference
	_, err = m.kernels.PlanAttend(&wrong)
	wants(t, err, ErrInvalidArgument)
	wants(t, m.kernels.Upload(plan, nil, image, workspace, 0), ErrInvalidArgument)
	plan.Close()
	wants(t, m.kernels.Attend(call, plan, image, workspace, 0), ErrFailedPrecondition)
}

// batchAttention: what the call gave that has the arrays one by one, from FlashInfer's; in a graph, too.
func (m *machine) batchAttention(cache, host *View, call *DeviceAttention, plan *CUDAAttendPlan,
	out DeviceRows, want []float32) {
	t, stream := m.t, m.stream.Handle()
	b, err := m.kernels.NewBatchAttention(BatchAttentionOptions{MaxSequences: 2,
		MaxPagesOfSequence: 3, WorkspaceBytes: 1 << 16})
	must(t, err)
	defer b.Close()
	equal(t, "target", b.Target(), "")
	wants(t, b.Run(call.Q, cache, 0, out, 0, stream), ErrFailedPrecondition)
	// An engine's own tensors, with the rows of the cache.
	var k, v []float32
	for i := 0; i < 6*2*4; i++ {
		k = append(k, unsafe.Slice((*float32)(host.K(0, i/8, i/4%2, i%4)), 16)...)
		v = append(v, unsafe.Slice((*float32)(host.V(0, i/8, i/4%2, i%4)), 16)...)
	}
	tensors := &PagedKV{K: m.upload(bytesOf(k)), V: m.upload(bytesOf(v)), Layout: HND, NumPages: 6,
		PageSize: 4, NumKVHeads: 2, HeadDim: 16, DType: F32}
	pages, err := tensors.View()
	must(t, err)
	defer pages.Close()
	step := &BatchAttentionPlan{QOIndptr: []int32{0, 2}, KVIndptr: []int32{0, 3},
		KVIndices: deviceTable, KVLastPageLen: []int32{2}, NumQOHeads: 4, Causal: true,
		QDataType: F32, ODataType: F32}
	must(t, b.Plan(step, cache, stream))
	equal(t, "target", b.Target(), "cuda-sm90-general")
	shape, err := b.Shape()
	must(t, err)
	wanted, err := plan.Shape()
	must(t, err)
	equal(t, "shape", shape, wanted)
	equal(t, "rows", shape.NumRows, 2)
	if b.DeviceBytes() < 1<<16 || b.PinnedBytes() < 1 {
		t.Fatal(b.DeviceBytes(), b.PinnedBytes())
	}
	got := make([]float32, len(want))
	check := func(what string) {
		m.download(bytesOf(got), out.Data)
		equal(t, what, got, want)
		must(t, m.memory.CopyIn(out.Data, make([]byte, 4*len(want))))
	}
	must(t, m.memory.CopyIn(out.Data, make([]byte, 4*len(want))))
	must(t, b.Run(call.Q, cache, 0, out, 0, stream))
	check("rows of a run")
	must(t, b.Plan(step, pages, stream))
	graph, err := m.device.Capture(stream, func() error {
		return b.Run(call.Q, pages, 0, out, 0, stream)
	})
	must(t, err)
	defer graph.Close()
	m.download(bytesOf(got), out.Data)
	equal(t, "a capture runs nothing", got[0] == 0 && graph.Handle() != 0, true)
	for i := 0; i < 2; i++ {
		must(t, graph.Launch(stream))
		check("rows of a launch")
	}
	// What cannot be captured, and what record says, is the answer; the stream goes on.
	_, err = m.device.Capture(stream, func() error { return b.Plan(step, pages, stream) })
	wants(t, err, ErrFailedPrecondition)
	_, err = m.device.Capture(stream, m.stream.Synchronize)
	wants(t, err, ErrUnavailable)
	_, err = m.device.Capture(0, m.stream.Synchronize)
	wants(t, err, ErrInvalidArgument)
	_, err = m.device.Capture(stream, nil)
	wants(t, err, ErrInvalidArgument)
	func() {
		defer func() { equal(t, "panic", recover(), "of record") }()
		_, _ = m.device.Capture(stream, func() error { panic("of record") })
	}()
	must(t, m.stream.Synchronize())
	wrong := *step
	wrong.KVIndices = []int32{4, 6, 2}
	e := wants(t, b.Plan(&wrong, pages, stream), ErrInvalidArgument)
	if !strings.Contains(e.Message, "kv_indices[1] is 6, allowed: 0 to 5") {
		t.Fatal(e)
	}
	wrong = *step
	wrong.KVIndptr = nil
	wants(t, b.Plan(&wrong, pages, stream), ErrInvalidArgument)
	wrong = *step
	wrong.Window = -1
	wants(t, b.Plan(&wrong, pages, stream), ErrInvalidArgument)
	wants(t, b.Plan(nil, pages, stream), ErrInvalidArgument)
	wants(t, b.Plan(step, nil, stream), ErrFailedPrecondition)
	_, err = new(PagedKV).View()
	wants(t, err, ErrInvalidArgument)
	_, err = m.kernels.NewBatchAttention(BatchAttentionOptions{})
	wants(t, err, ErrInvalidArgument)
}

// Steps whose tables go up entry by entry, then whole, and are there.
func TestPlansOnADeviceAreThoseOfTheCache(t *testing.T) {
	m := newMachine(t)
	c, err := NewCache(deviceGroup(), &Options{MaxSequences: 4})
	must(t, err)
	defer c.Close()
	options := &DevicePlanOptions{MaxSequences: 4, MaxTokens: 16, NumRows: c.NumRows(),
		Groups: []DevicePlanGroup{{BlockSize: 4, TableStride: 8}}}
	plan, err := m.kernels.NewDevicePlan(options)
	must(t, err)
	defer plan.Close()
	if plan.DeviceBytes() < 1 || plan.PinnedBytes() < 1 {
		t.Fatal(plan.DeviceBytes(), plan.PinnedBytes())
	}
	opened, err := c.Open(nil, nil)
	must(t, err)
	a, stream := opened.Sequence, m.stream.Handle()
	begin := func(token int32, o *PlanOptions) (Ticket, *Plan) {
		ticket, err := c.BeginStep(0)
		must(t, err)
		must(t, c.Append(a, []int32{token}, 0))
		arrays, err := c.Plan(o)
		must(t, err)
		return ticket, arrays
	}
	changes := &PlanOptions{ChangedEntries: true}
	var graph *CUDAGraph
	for i := int32(0); i < 7; i++ {
		ticket, arrays := begin(i, changes)
		if i%3 == 2 {
			arrays = arrays.Clone() // memory of Go
		}
		needs, err := plan.NeedsBlockTables(arrays)
		must(t, err)
		equal(t, "needs tables", needs, false)
		switch {
		case i%2 == 0:
			must(t, plan.Upload(arrays, stream))
		case i < 5:
			must(t, plan.Send(arrays, stream))
			e := wants(t, plan.Send(arrays, stream), ErrFailedPrecondition)
			if !strings.Contains(e.Message, "was sent and not applied; call apply()") {
				t.Fatal(e)
			}
			must(t, plan.Apply(stream))
		default:
			must(t, plan.Send(arrays, stream))
			graph, err = m.device.Capture(stream, func() error { return plan.Apply(stream) })
			must(t, err)
			defer graph.Close()
			must(t, graph.Launch(stream))
			plan.Applied()
		}
		must(t, plan.Verify(arrays, stream))
		info, err := plan.LastUpload()
		must(t, err)
		whole := int64(0)
		if i == 4 {
			whole = 1
		}
		equal(t, "whole rows", info.WholeRows, whole)
		equal(t, "bytes", info.Bytes > 0, true)
		must(t, plan.Wait())
		must(t, c.Finish(ticket))
		if i == 3 {
			plan.Resend()
		}
	}
	arrays, err := plan.Arrays()
	must(t, err)
	group, err := plan.Group(0)
	must(t, err)
	equal(t, "arrays", arrays.KVLens != 0 && arrays.Positions == 0 && group.BatchTable != 0 &&
		group.SlotMapping64 == 0, true)
	equal(t, "stride", group.TableStride, 8)
	lens, table := make([]int32, 4), make([]int32, 8)
	m.download(bytesOf(lens), arrays.KVLens)
	equal(t, "lengths", lens, []int32{7, 0, 0, 0})
	m.download(bytesOf(table), group.BatchTable)
	blocks, err := c.BlockTable(a, 0)
	must(t, err)
	equal(t, "table", table[:2], blocks)
	_, err = plan.Group(1)
	wants(t, err, ErrInvalidArgument)
	// A step that it was never told of.
	none := &PlanOptions{ChangedEntries: true, NoBlockTables: true}
	ticket, _ := begin(8, none)
	must(t, c.Finish(ticket))
	_, step := begin(9, none)
	needs, err := plan.NeedsBlockTables(step)
	must(t, err)
	equal(t, "needs tables", needs, true)
	wants(t, plan.Upload(step, stream), ErrFailedPrecondition)
	wants(t, plan.Upload(nil, stream), ErrInvalidArgument)
	wants(t, plan.Upload(&Plan{}, stream), ErrInvalidArgument)
	options.MaxSequences = 0
	_, err = m.kernels.NewDevicePlan(options)
	wants(t, err, ErrInvalidArgument)
}

func TestEventsOrderStreams(t *testing.T) {
	m := newMachine(t)
	s, view := m.storage(true)
	other, err := m.device.NewStream()
	must(t, err)
	defer other.Close()
	event, err := m.device.NewEvent()
	must(t, err)
	defer event.Close()
	passed, err := event.Passed()
	must(t, err)
	equal(t, "passed", passed && event.Handle() != 0, true)
	must(t, m.kernels.Fill(view, 1, other.Handle()))
	must(t, event.Record(other.Handle()))
	must(t, event.HoldBack(m.stream.Handle()))
	must(t, m.kernels.Fill(view, 2, m.stream.Handle()))
	must(t, m.stream.Synchronize())
	must(t, event.Synchronize())
	done, err := other.Done()
	must(t, err)
	equal(t, "done", done, true)
	for _, b := range images(t, s) {
		equal(t, "byte", b, byte(2))
	}
}

// Whatever is closed first, what is left has all that it needs.
func TestHandlesOfADeviceEndInAnyOrder(t *testing.T) {
	m := newMachine(t)
	p := m.upload([]byte{1, 2, 3, 4})
	plan, err := m.kernels.NewDevicePlan(&DevicePlanOptions{MaxSequences: 1, MaxTokens: 1,
		NumRows: 1, Groups: []DevicePlanGroup{{BlockSize: 4, TableStride: 1}}})
	must(t, err)
	batch, err := m.kernels.NewBatchAttention(BatchAttentionOptions{MaxSequences: 1,
		MaxPagesOfSequence: 1, MaxImageBytes: 16, WorkspaceBytes: 16})
	must(t, err)
	graph, err := m.device.Capture(m.stream.Handle(), func() error { return nil })
	must(t, err)
	_, err = m.device.Capture(m.stream.Handle(), func() error {
		e := wants(t, m.device.Close(), ErrFailedPrecondition)
		if e.Message != "Close: captures of the CUDADevice that are open: 1; close it behind them" {
			t.Fatal(e)
		}
		return e
	})
	wants(t, err, ErrFailedPrecondition)
	must(t, m.stream.Synchronize()) // it is captured no more
	must(t, m.device.Close())
	must(t, m.device.Close())
	m.kernels.Close()
	m.stream.Close()
	plan.Close()
	must(t, graph.Launch(0))
	graph.Close()
	batch.Close()
	wants(t, graph.Launch(0), ErrFailedPrecondition)
	wants(t, plan.Apply(0), ErrFailedPrecondition)
	back := make([]byte, 4)
	must(t, m.memory.Copy(p+2, p, 2))
	must(t, m.memory.CopyOut(back, p))
	equal(t, "bytes", back, []byte{1, 2, 1, 2})
	wants(t, m.device.Status(), ErrFailedPrecondition)
	_, err = m.device.NewStream()
	wants(t, err, ErrFailedPrecondition)
	second, err := OpenCUDA(1)
	must(t, err)
	defer second.Close()
	_, err = second.NewMemory(&CUDAMemoryOptions{Kernels: m.kernels})
	wants(t, err, ErrFailedPrecondition)
	// A memory that is cut from the piece of another one, which is of device 0.
	_, err = second.NewMemory(&CUDAMemoryOptions{Source: CUDALent, Lent: p, LentBytes: 4})
	wants(t, err, ErrInvalidArgument)
	_, err = second.NewMemory(&CUDAMemoryOptions{Source: 3})
	wants(t, err, ErrInvalidArgument)
	memory, err := second.NewMemory(nil)
	must(t, err)
	memory.Close()
}

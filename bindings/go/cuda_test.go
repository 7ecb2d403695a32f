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
		(*CUDAPinned)(nil), (*CUDAMemory)(nil), (*CUDAKernels)(nil), (*CUDAAttendPlan)(nil))
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
	t.Cleanup(m.device.Close)
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
	device.Close() // nil is nothing
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
	m.device.Close()
	m.kernels.Close()
	m.stream.Close()
	back := make([]byte, 4)
	must(t, m.memory.Copy(p+2, p, 2))
	must(t, m.memory.CopyOut(back, p))
	equal(t, "bytes", back, []byte{1, 2, 1, 2})
	wants(t, m.device.Status(), ErrFailedPrecondition)
	_, err := m.device.NewStream()
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

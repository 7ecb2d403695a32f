// SPDX-License-Identifier: Apache-2.0

package tiers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
	"github.com/kvfolio/kvfolio/bindings/go/internal/bridge"
	"github.com/kvfolio/kvfolio/bindings/go/internal/ctier"
)

// What finalizers say goes here, from a goroutine of the collector's own.
var heard struct {
	sync.Mutex
	by func(line string)
}

func init() {
	otherwise := bridge.Complain
	bridge.Complain = func(line string) {
		heard.Lock()
		by := heard.by
		heard.Unlock()
		if by == nil {
			by = otherwise
		}
		by(line)
	}
}

// listen hands what finalizers say to a test, until it ends.
func listen(t testing.TB, by func(line string)) {
	set := func(to func(line string)) {
		heard.Lock()
		heard.by = to
		heard.Unlock()
	}
	set(by)
	t.Cleanup(func() { set(nil) })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t testing.TB, err error, code kvfolio.Code, parts ...string) {
	t.Helper()
	var e *kvfolio.Error
	if !errors.Is(err, code) || !errors.As(err, &e) || e.Message == "" {
		t.Fatalf("error is %v, want %v", err, code)
	}
	for _, part := range parts {
		if !strings.Contains(e.Message, part) {
			t.Fatalf("error is %v, which does not say %q", err, part)
		}
	}
}

func equal(t testing.TB, name string, got, want interface{}) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s is %v, want %v", name, got, want)
	}
}

var model = &ModelIdentity{Model: "toy", Weights: "1", Tokenizer: "ids", ModelDType: "f32",
	Positions: "none", Engine: "test"}

// Rows of 64 f32 in blocks of 4 tokens: records are larger than a page of a disk.
func groups(blocks int) []kvfolio.GroupSpec {
	return []kvfolio.GroupSpec{{NumLayers: 2, HeadDimK: 64, HeadDimV: 64, BlockSize: 4,
		NumBlocks: blocks}}
}

func newCache(t testing.TB, blocks int) *kvfolio.Cache {
	t.Helper()
	storage, err := kvfolio.NewStorage(groups(blocks), nil)
	must(t, err)
	cache, err := kvfolio.NewCacheWithStorage(storage, &kvfolio.Options{ListFindable: true})
	must(t, err)
	t.Cleanup(cache.Close)
	return cache
}

func newOffload(t testing.TB, cache *kvfolio.Cache, tiers ...*Tier) *Offload {
	t.Helper()
	var list []OffloadTier
	for _, tier := range tiers {
		list = append(list, OffloadTier{Tier: tier})
	}
	// The answers of a machine that does other things, too.
	offload, err := NewOffload(cache, model, &OffloadOptions{ArenaBytes: 1 << 20,
		Timeout: 20 * time.Second, CopyTimeout: 20 * time.Second}, list)
	must(t, err)
	t.Cleanup(offload.Close)
	return offload
}

func newDisk(t testing.TB, directory string) *Tier {
	t.Helper()
	disk, err := NewDiskTier(directory, &DiskOptions{Bytes: 4 << 20, SegmentBytes: 1 << 20,
		NumThreads: 2})
	must(t, err)
	t.Cleanup(disk.Close)
	return disk
}

func prompt1(number int32) []int32 {
	out := make([]int32, 21)
	for i := range out {
		out[i] = number*100 + int32(i)
	}
	return out
}

// row is what a model computes for a token at a position.
func row(token int32, layer int) []float32 {
	out := make([]float32, 64)
	for i := range out {
		out[i] = float32(token)*0.3 + float32(i) + 1000*float32(layer)
	}
	return out
}

// compute writes the rows of the tokens behind those that were found.
func compute(t testing.TB, cache *kvfolio.Cache, sequence kvfolio.Sequence, tokens []int32, from int) {
	t.Helper()
	ticket, err := cache.BeginStep(0)
	must(t, err)
	must(t, cache.Append(sequence, tokens[from:], 0))
	must(t, cache.RunCopies())
	plan, err := cache.Plan(nil)
	must(t, err)
	view, err := cache.View(0, -1)
	must(t, err)
	defer view.Close()
	for layer := 0; layer < 2; layer++ {
		var all []float32
		for _, token := range tokens[from:] {
			all = append(all, row(token, layer)...)
		}
		rows := kvfolio.RowsF32(all, len(tokens)-from, 1, 64)
		must(t, kvfolio.AppendRows(view, layer, rows, rows, plan.Groups[0].SlotMapping))
	}
	must(t, cache.Finish(ticket))
}

// checkRows compares each byte of the first n tokens of a sequence with what a model computes.
func checkRows(t testing.TB, cache *kvfolio.Cache, sequence kvfolio.Sequence, tokens []int32, n int) {
	t.Helper()
	table, err := cache.BlockTable(sequence, 0)
	must(t, err)
	view, err := cache.View(0, -1)
	must(t, err)
	defer view.Close()
	for p, token := range tokens[:n] {
		for layer := 0; layer < 2; layer++ {
			for _, at := range []unsafe.Pointer{view.K(layer, int(table[p/4]), 0, p%4),
				view.V(layer, int(table[p/4]), 0, p%4)} {
				if got := unsafe.Slice((*float32)(at), 64); !reflect.DeepEqual(got, row(token, layer)) {
					t.Fatalf("token %d of layer %d is %v", p, layer, got)
				}
			}
		}
	}
}

// serve is one request: opens it, waits, checks what came, computes the rest. It returns what was found.
func serve(t testing.TB, o *Offload, tokens []int32) (int, LoadEnd) {
	t.Helper()
	opened, err := o.Open(tokens, nil)
	must(t, err)
	found, why := opened.CachedTokens, LoadEnd(-1)
	for opened.Pending {
		ready, err := o.Wait(time.Now().Add(30 * time.Second))
		must(t, err)
		equal(t, "ready ones", len(ready), 1)
		equal(t, "who is ready", ready[0].Sequence, opened.Sequence)
		found, why, opened.Pending = ready[0].CachedTokens, ready[0].Why, false
	}
	checkRows(t, o.Cache(), opened.Sequence, tokens, found)
	compute(t, o.Cache(), opened.Sequence, tokens, found)
	checkRows(t, o.Cache(), opened.Sequence, tokens, len(tokens))
	must(t, o.Cache().CloseSequence(opened.Sequence))
	must(t, o.CheckInvariants())
	return found, why
}

func drain(t testing.TB, o *Offload) {
	t.Helper()
	left, err := o.Drain(time.Now().Add(30 * time.Second))
	must(t, err)
	equal(t, "what is left", left, Left{})
}

func TestADiskGivesTheNextProcessWhatThisOneComputed(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "tier")
	for run, want := range []int{0, 20} {
		disk := newDisk(t, directory)
		o := newOffload(t, newCache(t, 32), disk)
		for number := int32(1); number <= 3; number++ {
			found, why := serve(t, o, prompt1(number))
			equal(t, "found", found, want)
			equal(t, "why", why, []LoadEnd{LoadNothing, Loaded}[run])
		}
		drain(t, o)
		equal(t, "idle", o.Idle(), true)
		counters, err := o.Counters()
		must(t, err)
		ofTier, err := o.TierCounters(0)
		must(t, err)
		stats, err := disk.DiskStats()
		must(t, err)
		equal(t, "records", stats.Records, int64(15))
		equal(t, "tokens loaded", counters.TokensLoaded, uint64(3*want))
		equal(t, "loads", []uint64{counters.TierLoads, ofTier.Loads, counters.Requests},
			[]uint64{uint64(3 * want / 4), uint64(3 * want / 4), 3})
		equal(t, "stores", counters.TierStores, ofTier.Stores)
		health, err := disk.Health()
		must(t, err)
		equal(t, "usable", health.Usable && health.Failures == 0, true)
		if !strings.Contains(disk.Describe(), directory) {
			t.Fatal(disk.Describe())
		}
		o.Close()
		disk.Close()
	}
}

func TestWhatHostMemoryHasComesBackAndAForgottenRootDoesNot(t *testing.T) {
	cache := newCache(t, 32)
	o := newOffload(t, cache)
	equal(t, "tiers", o.NumTiers(), 0)
	for number := int32(1); number <= 2; number++ {
		serve(t, o, prompt1(number))
	}
	drain(t, o)
	arena, err := o.Arena()
	must(t, err)
	equal(t, "records", arena.Records, int64(10))
	_, err = cache.Evict(0, 32, nil)
	must(t, err)
	found, why := serve(t, o, prompt1(2))
	equal(t, "found", found, 20)
	equal(t, "why", why, Loaded)
	_, err = o.Forget(prompt1(2)[:4], nil)
	must(t, err)
	found, _ = serve(t, o, prompt1(2))
	equal(t, "found of what was forgotten", found, 0)
	epochs, err := o.Epochs()
	must(t, err)
	equal(t, "prefixes forgotten", len(epochs.Roots), 1)
	gone, err := o.ForgetRoot(nil)
	must(t, err)
	equal(t, "blocks are gone", gone.Blocks > 0, true)
	_, err = o.Reset()
	must(t, err)
	equal(t, "epoch", o.Epoch() > 0, true)
	epochs, err = o.Epochs()
	must(t, err)
	equal(t, "epoch", epochs.Epoch, o.Epoch())
}

func TestWhatWasForgottenStaysSoInTheNextProcess(t *testing.T) {
	directory := t.TempDir()
	disk := newDisk(t, directory)
	o := newOffload(t, newCache(t, 32), disk)
	serve(t, o, prompt1(1))
	serve(t, o, prompt1(2))
	drain(t, o)
	_, err := o.Forget(prompt1(1), nil)
	must(t, err)
	names, err := o.Epochs()
	must(t, err)
	o.Close()
	disk.Close()
	disk = newDisk(t, directory)
	o, err = NewOffload(newCache(t, 32), model, &OffloadOptions{ArenaBytes: 1 << 20, Names: names,
		Timeout: 20 * time.Second}, []OffloadTier{{Tier: disk, Policy: WriteOff}})
	must(t, err)
	defer o.Close()
	found, _ := serve(t, o, prompt1(1))
	equal(t, "found of what was forgotten", found < 20, true)
	found, _ = serve(t, o, prompt1(2))
	equal(t, "found", found, 20)
}

func TestARequestThatIsCanceledGoesOn(t *testing.T) {
	table := ctier.New()
	tier := newMap(t, table)
	o := newOffload(t, newCache(t, 32), tier)
	table.Hold(true)
	opened, err := o.Open(prompt1(1), nil)
	must(t, err)
	equal(t, "pending", opened.Pending, true)
	ready, err := o.Poll()
	must(t, err)
	equal(t, "ready", len(ready), 0)
	length, err := o.Cancel(opened.Sequence)
	must(t, err)
	equal(t, "length", length, 0)
	compute(t, o.Cache(), opened.Sequence, prompt1(1), 0)
	_, err = o.Cancel(12345)
	wants(t, err, kvfolio.ErrNotFound)
	table.Hold(false)
	drain(t, o)
	equal(t, "records", table.Len(), 5)
}

func newMap(t testing.TB, table ctier.Map) *Tier {
	t.Helper()
	tier, err := NewTier(&Functions{Name: "map", RecordBytesMax: 1 << 20, Context: table.Context(),
		Submit: ctier.Submit, Poll: ctier.Poll, EventFD: ctier.EventFD, Health: ctier.Health,
		Close: ctier.Close, Destroy: ctier.Destroy})
	must(t, err)
	t.Cleanup(tier.Close)
	return tier
}

func TestATierOfTheCallersOwnIsVerified(t *testing.T) {
	table := ctier.New()
	o := newOffload(t, newCache(t, 32), newMap(t, table))
	serve(t, o, prompt1(1))
	drain(t, o)
	o.Close()
	equal(t, "records", table.Len(), 5)
	o = newOffload(t, newCache(t, 32), newMap(t, table))
	found, _ := serve(t, o, prompt1(1))
	equal(t, "found", found, 20)
	o.Close()
	table.Flip()
	table.Lie()
	o = newOffload(t, newCache(t, 32), newMap(t, table))
	found, _ = serve(t, o, prompt1(1))
	equal(t, "found of what is damaged", found, 0)
	counters, err := o.Counters()
	must(t, err)
	equal(t, "corrupt", counters.TierCorrupt > 0, true)
	equal(t, "unknown", counters.UnknownCompletions > 0, true)
}

func TestCachesShareATierInMemory(t *testing.T) {
	one, two := newCache(t, 32), newCache(t, 32)
	tier, err := NewMemoryTier(one, 1<<20, nil)
	must(t, err)
	defer tier.Close()
	other, err := tier.Share()
	must(t, err)
	defer other.Close()
	equal(t, "names", tier.Name()+" "+other.Describe(), "memory memory")
	first, second := newOffload(t, one, tier), newOffload(t, two, other)
	equal(t, "tiers", first.Tiers(), []*Tier{tier})
	serve(t, first, prompt1(4))
	drain(t, first)
	found, why := serve(t, second, prompt1(4))
	equal(t, "found", found, 20)
	equal(t, "why", why.String(), "loaded")
	_, err = newDisk(t, t.TempDir()).Share()
	wants(t, err, kvfolio.ErrUnsupported)
}

// ---- a tier alone ----

func buffers(t testing.TB, n, bytes int) []*Buffer {
	t.Helper()
	out := make([]*Buffer, n)
	for i := range out {
		b, err := NewBuffer(bytes)
		must(t, err)
		t.Cleanup(b.Close)
		out[i] = b
	}
	return out
}

func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(seed*31 + i*7 + i>>8)
	}
}

func keyNumber(i int) Key {
	var key Key
	key[0], key[24], key[25] = 1, byte(i), byte(i>>8)
	return key
}

// all submits and waits until all are done; what a tier does not take is offered again.
func all(t testing.TB, tier *Tier, op Op, keys []Key, list []*Buffer) []Result {
	t.Helper()
	out := make([]Result, len(keys))
	number := map[Ticket]int{}
	for next := 0; next < len(keys) || len(number) > 0; {
		var items []Item
		for i := next; i < len(keys); i++ {
			item := Item{Key: keys[i]}
			if list != nil {
				item.Buffer = list[i]
			}
			items = append(items, item)
		}
		tickets, err := tier.Submit(op, items, time.Now().Add(30*time.Second))
		must(t, err)
		for i, ticket := range tickets {
			number[ticket] = next + i
		}
		next += len(tickets)
		done, err := tier.Wait(time.Now().Add(30 * time.Second))
		must(t, err)
		for _, one := range done {
			out[number[one.Ticket]] = one.Result
			if list != nil && one.Buffer != list[number[one.Ticket]] {
				t.Fatal("another buffer came back")
			}
			delete(number, one.Ticket)
		}
	}
	equal(t, "in flight", tier.InFlight(), 0)
	return out
}

func count(results []Result, which Result) int {
	n := 0
	for _, one := range results {
		if one == which {
			n++
		}
	}
	return n
}

func TestADiskGivesTheSameBytesOrAMiss(t *testing.T) {
	const n, bytes = 40, 20000
	directory := t.TempDir()
	for name, o := range map[string]*DiskOptions{
		"threads":  {Bytes: 8 << 20, Engine: EngineThreads, NumThreads: 3, NoDirect: true},
		"io_uring": {Bytes: 8 << 20},
		"sealed":   {Bytes: 8 << 20, Keys: RecordKeys{Key: &[32]byte{1, 2, 3}}},
	} {
		t.Run(name, func(t *testing.T) {
			disk, err := NewDiskTier(filepath.Join(directory, name), o)
			must(t, err)
			defer disk.Close()
			limits, err := disk.Limits()
			must(t, err)
			equal(t, "alignment divides a page", 4096%limits.DataAlignment, 0)
			equal(t, "descriptor", disk.EventFD() >= 0, true)
			keys, list := make([]Key, n), buffers(t, n, bytes)
			for i := range keys {
				keys[i] = keyNumber(i)
				fill(list[i].Bytes(), i)
			}
			equal(t, "misses", count(all(t, disk, Exists, keys, nil), Miss), n)
			equal(t, "stored", count(all(t, disk, Store, keys, list), OK), n)
			equal(t, "there", count(all(t, disk, Exists, keys, nil), OK), n)
			back := buffers(t, n, bytes)
			equal(t, "loaded", count(all(t, disk, Load, keys, back), OK), n)
			for i := range back {
				if !reflect.DeepEqual(back[i].Bytes(), list[i].Bytes()) {
					t.Fatalf("record %d has other bytes", i)
				}
			}
			equal(t, "of another size", all(t, disk, Load, keys[:1], buffers(t, 1, 100)),
				[]Result{Corrupt})
			equal(t, "erased", count(all(t, disk, Erase, keys[:7], nil), OK), 7)
			equal(t, "gone", count(all(t, disk, Load, keys[:7], back[:7]), Miss), 7)
			must(t, disk.WaitUntilReady(0))
			must(t, disk.Stop(time.Time{}))
			tickets, err := disk.Submit(Exists, []Item{{Key: keys[9]}}, time.Time{})
			must(t, err)
			equal(t, "accepted after Stop", len(tickets), 0)
		})
	}
}

func TestNoDamagedRecordIsHandedOver(t *testing.T) {
	const n, bytes = 32, 8192
	directory := t.TempDir()
	disk := newDisk(t, directory)
	keys, list := make([]Key, n), buffers(t, n, bytes)
	for i := range keys {
		keys[i] = keyNumber(i)
		fill(list[i].Bytes(), i)
	}
	equal(t, "stored", count(all(t, disk, Store, keys, list), OK), n)
	disk.Close()
	flipped := 0
	files, err := filepath.Glob(filepath.Join(directory, "segment-*"))
	must(t, err)
	for _, path := range files {
		text, err := os.ReadFile(path)
		must(t, err)
		for i := range list {
			if at := strings.Index(string(text), string(list[i].Bytes())); at >= 0 {
				text[at+37*i%bytes] ^= 1 << (i % 8)
				flipped++
			}
		}
		must(t, os.WriteFile(path, text, 0o600))
	}
	equal(t, "records with a flipped bit", flipped, n)
	disk = newDisk(t, directory)
	back := buffers(t, n, bytes)
	equal(t, "corrupt", count(all(t, disk, Load, keys, back), Corrupt), n)
	equal(t, "not found again", count(all(t, disk, Load, keys, back), Miss), n)
	stats, err := disk.DiskStats()
	must(t, err)
	equal(t, "counted", stats.Corrupt, uint64(n))
}

func TestADamagedFileIsComputedAgain(t *testing.T) {
	directory := t.TempDir()
	disk := newDisk(t, directory)
	o := newOffload(t, newCache(t, 32), disk)
	serve(t, o, prompt1(1))
	drain(t, o)
	o.Close()
	disk.Close()
	// What a model computed for the ninth token stands in its record once for K and once for V.
	bits := row(prompt1(1)[8], 0)
	pattern := string(unsafe.Slice((*byte)(unsafe.Pointer(&bits[0])), 4*len(bits)))
	flipped := 0
	files, err := filepath.Glob(filepath.Join(directory, "segment-*"))
	must(t, err)
	for _, path := range files {
		text, err := os.ReadFile(path)
		must(t, err)
		if at := strings.Index(string(text), pattern); at >= 0 {
			text[at+5] ^= 1
			flipped++
			must(t, os.WriteFile(path, text, 0o600))
		}
	}
	equal(t, "flipped", flipped, 1)
	disk = newDisk(t, directory)
	o = newOffload(t, newCache(t, 32), disk)
	found, why := serve(t, o, prompt1(1)) // and compares every byte of what was found
	equal(t, "found in front of the damage", found, 8)
	equal(t, "why", why, LoadPart)
}

func TestAnItemIsLateAfterItsDeadline(t *testing.T) {
	disk := newDisk(t, t.TempDir())
	list := buffers(t, 1, 4096)
	_, err := disk.Submit(Store, []Item{{keyNumber(1), list[0]}}, time.Now().Add(-time.Second))
	must(t, err)
	done, err := disk.Wait(time.Now().Add(30 * time.Second))
	must(t, err)
	equal(t, "result", done[0].Result, Timeout)
	equal(t, "in use", list[0].InUse(), false)
}

func TestATierHasABufferUntilItIsDone(t *testing.T) {
	table := ctier.New()
	tier := newMap(t, table)
	table.Hold(true)
	b := buffers(t, 2, 64)
	fill(b[0].Bytes(), 1)
	_, err := tier.Submit(Store, []Item{{keyNumber(1), b[0]}}, time.Time{})
	must(t, err)
	equal(t, "bytes in flight", b[0].Bytes(), []byte(nil))
	equal(t, "in use", b[0].InUse(), true)
	_, err = tier.Submit(Store, []Item{{keyNumber(2), b[0]}}, time.Time{}) // two may read
	must(t, err)
	_, err = tier.Submit(Load, []Item{{keyNumber(1), b[0]}}, time.Time{})
	wants(t, err, kvfolio.ErrFailedPrecondition, "has the Buffer still")
	_, err = tier.Submit(Load, []Item{{keyNumber(1), b[1]}, {keyNumber(2), b[1]}}, time.Time{})
	wants(t, err, kvfolio.ErrFailedPrecondition, "has the Buffer still")
	equal(t, "what was refused is the caller's", len(b[1].Bytes()), 64)
	_, err = tier.Submit(Load, []Item{{Key: keyNumber(1)}}, time.Time{})
	wants(t, err, kvfolio.ErrInvalidArgument, "needs a Buffer")
	done, err := tier.Wait(time.Now().Add(3 * time.Millisecond))
	must(t, err)
	equal(t, "done", len(done), 0)
	b[0].Close() // freed when the tier is done with it
	equal(t, "in use", b[0].InUse(), true)
	table.Hold(false)
	done, err = tier.Wait(time.Time{})
	must(t, err)
	equal(t, "done", done, []Done{{1, OK, b[0]}, {2, OK, b[0]}})
	equal(t, "memory is freed", b[0].memory, unsafe.Pointer(nil))
	_, err = tier.Submit(Store, []Item{{keyNumber(3), b[0]}}, time.Time{})
	wants(t, err, kvfolio.ErrFailedPrecondition, "the Buffer is closed")

	table.Hold(true)
	_, err = tier.Submit(Load, []Item{{keyNumber(1), b[1]}}, time.Time{})
	must(t, err)
	tier.Close()
	equal(t, "destroyed", table.Destroyed(), true)
	equal(t, "bytes come back with the end", len(b[1].Bytes()), 64)
}

func TestABufferOverMemoryOfTheCaller(t *testing.T) {
	p, err := kvfolio.AllocC(256)
	must(t, err)
	defer kvfolio.FreeC(p)
	b, err := BufferOver(unsafe.Add(p, 64), 128)
	must(t, err)
	fill(b.Bytes(), 3)
	tier := newMap(t, ctier.New())
	equal(t, "stored", all(t, tier, Store, []Key{keyNumber(1)}, []*Buffer{b}), []Result{OK})
	equal(t, "length", b.Len(), 128)
	b.Close()
	b.Close()
	_, err = BufferOver(nil, 4)
	wants(t, err, kvfolio.ErrInvalidArgument)
	_, err = NewBuffer(-1)
	wants(t, err, kvfolio.ErrOutOfMemory)
	odd, err := BufferOver(unsafe.Add(p, 1), 64)
	must(t, err)
	defer odd.Close()
	_, err = tier.Submit(Store, []Item{{keyNumber(2), odd}}, time.Time{})
	wants(t, err, kvfolio.ErrInvalidArgument, "align")
	equal(t, "what was refused is the caller's", odd.InUse(), false)
	defer func() {
		if recover() == nil {
			t.Fatal("memory of Go was taken")
		}
	}()
	_, _ = BufferOver(unsafe.Pointer(new([64]byte)), 64)
}

// Buffers that only the tier keeps are kept by the tier, whatever the collector does meanwhile.
func TestTheCollectorRunsWhileATierWorks(t *testing.T) {
	const n, bytes = 60, 16384
	listen(t, func(line string) {
		if strings.Contains(line, "tiers_test.go:") { // not what another test left
			t.Error(line)
		}
	})
	disk := newDisk(t, t.TempDir())
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	for _, op := range []Op{Store, Load} {
		tickets := 0
		for i := 0; i < n; {
			b, err := NewBuffer(bytes)
			must(t, err)
			if op == Store {
				fill(b.Bytes(), i)
			}
			got, err := disk.Submit(op, []Item{{keyNumber(i), b}}, time.Time{})
			must(t, err)
			if len(got) == 0 {
				b.Close()
			}
			i += len(got)
			tickets += len(got)
		}
		for tickets > 0 {
			done, err := disk.Wait(time.Now().Add(30 * time.Second))
			must(t, err)
			for _, one := range done {
				want := make([]byte, bytes)
				fill(want, int(one.Ticket-1)%n)
				if one.Result != OK || !reflect.DeepEqual(one.Buffer.Bytes(), want) {
					t.Fatalf("%v %v", op, one)
				}
				one.Buffer.Close()
				tickets--
			}
		}
	}
	close(stop)
	<-stopped
}

func TestGoroutinesUseOneTier(t *testing.T) {
	const each = 25
	disk := newDisk(t, t.TempDir())
	var answers sync.Map // of Ticket
	var workers, poller sync.WaitGroup
	poller.Add(1)
	go func() { // one waits for all
		defer poller.Done()
		for {
			done, err := disk.Wait(time.Now().Add(time.Second))
			if err != nil {
				wants(t, err, kvfolio.ErrFailedPrecondition, "the Tier is closed")
				return
			}
			for _, one := range done {
				answers.Store(one.Ticket, one.Result)
			}
			runtime.Gosched()
		}
	}()
	ask := func(op Op, key Key, b *Buffer) (Result, error) {
		for {
			tickets, err := disk.Submit(op, []Item{{key, b}}, time.Time{})
			if err != nil {
				return 0, err
			}
			for len(tickets) > 0 {
				if result, is := answers.LoadAndDelete(tickets[0]); is {
					return result.(Result), nil
				}
				time.Sleep(50 * time.Microsecond)
			}
		}
	}
	for worker := 0; worker < 4; worker++ {
		workers.Add(1)
		go func(worker int) {
			defer workers.Done()
			b, err := NewBuffer(5000)
			if err != nil {
				t.Error(err)
				return
			}
			defer b.Close()
			for i := 0; i < each; i++ {
				number := worker*each + i
				fill(b.Bytes(), number)
				stored, err := ask(Store, keyNumber(number), b)
				if err != nil || stored != OK {
					t.Error(stored, err)
				}
				fill(b.Bytes(), -1)
				loaded, err := ask(Load, keyNumber(number), b)
				want := make([]byte, 5000)
				fill(want, number)
				if err != nil || loaded != OK || !reflect.DeepEqual(b.Bytes(), want) {
					t.Error(number, loaded, err)
				}
				_, _ = disk.Health()
				_, _ = disk.DiskStats()
			}
		}(worker)
	}
	workers.Wait()
	disk.Close() // ends the Wait
	poller.Wait()
}

// ---- names and records ----

func TestNamesAreThoseOfTheRecordsThatAnOffloadStored(t *testing.T) {
	disk := newDisk(t, t.TempDir())
	o := newOffload(t, newCache(t, 32), disk)
	root, err := kvfolio.NewRoot(kvfolio.RootKey{TenantSalt: "tenant 7"})
	must(t, err)
	defer root.Close()
	opened, err := o.Open(prompt1(1), &kvfolio.OpenOptions{Root: root})
	must(t, err)
	_, err = o.Wait(time.Time{})
	must(t, err)
	compute(t, o.Cache(), opened.Sequence, prompt1(1), 0)
	drain(t, o)
	ofOffload, err := o.Identity().Fields()
	must(t, err)
	o.Close()
	names, err := NewIdentity(model, groups(1))
	must(t, err)
	defer names.Close()
	fields, err := names.Fields()
	must(t, err)
	equal(t, "fields", fields, ofOffload)
	equal(t, "first field", fields[0].Name != "" && len(fields) > 10, true)
	equal(t, "unit", names.Unit(), 4)
	equal(t, "groups", names.NumGroups(), 1)
	at, err := names.Root(root, 0)
	must(t, err)
	for begin := 0; begin < 20; begin += 4 {
		at, err = names.Next(at, begin, prompt1(1)[begin:begin+4], nil)
		must(t, err)
		key, err := names.Key(0, at)
		must(t, err)
		equal(t, "found by its name", all(t, disk, Exists, []Key{key}, nil), []Result{OK})
	}
	ofModel, err := names.Namespace(-1)
	must(t, err)
	ofGroup, err := names.Namespace(0)
	must(t, err)
	equal(t, "namespaces differ", ofModel != ofGroup, true)
	_, err = names.Namespace(1)
	wants(t, err, kvfolio.ErrInvalidArgument)
	must(t, names.CheckGroups(groups(99)))
	other := groups(99)
	other[0].HeadDimK = 32
	wants(t, names.CheckGroups(other), kvfolio.ErrInvalidArgument, "head_dim_k")
	_, err = NewIdentity(&ModelIdentity{Model: "m"}, groups(1))
	wants(t, err, kvfolio.ErrInvalidArgument, "weights")
	_, err = NewIdentity(nil, groups(1))
	wants(t, err, kvfolio.ErrInvalidArgument)
}

func TestNamesOfAnEnginesOwnHashes(t *testing.T) {
	of := func(engine string) Key {
		names, err := NewForeignIdentity(&ForeignModel{Engine: engine, Model: "m", Weights: "w",
			ModelDType: "bf16", Hash: "sha256", HashSeed: "none", Layout: "bf16 HND 16x8x128"})
		must(t, err)
		defer names.Close()
		key, err := names.Key(0, []byte("a hash"), "tenant 7")
		must(t, err)
		other, err := names.Key(0, []byte("a hash"), "tenant 8")
		must(t, err)
		equal(t, "salts keep apart", key != other, true)
		_, err = names.Namespace(0)
		must(t, err)
		_, err = names.Key(1, nil, "")
		wants(t, err, kvfolio.ErrInvalidArgument)
		return key
	}
	equal(t, "the same", of("one"), of("one"))
	equal(t, "another engine", of("one") != of("two"), true)
	_, err := NewForeignIdentity(&ForeignModel{Engine: "e"})
	wants(t, err, kvfolio.ErrInvalidArgument, "model")
	_, err = NewForeignIdentity(nil)
	wants(t, err, kvfolio.ErrInvalidArgument)
}

func TestARecordIsThatOfItsNameOrRefused(t *testing.T) {
	secret := [32]byte{1, 2, 3}
	plain, err := NewSealer(RecordKeys{})
	must(t, err)
	defer plain.Close()
	sealed, err := NewSealer(RecordKeys{Key: &secret})
	must(t, err)
	defer sealed.Close()
	payload := []byte("keys and values")
	info := &RecordInfo{Key: keyNumber(5), Layout: Digest{9}, Begin: 4, End: 8, Epoch: 3, Writer: 1}
	for i, sealer := range []*Sealer{plain, sealed} {
		header, err := sealer.Seal(info, payload)
		must(t, err)
		must(t, sealer.Verify(info, &header, payload))
		wants(t, sealer.Verify(&RecordInfo{Key: keyNumber(6)}, &header, payload), kvfolio.ErrCorrupt)
		wants(t, sealer.Verify(info, &header, []byte("keys and valueS")), kvfolio.ErrCorrupt)
		wants(t, []*Sealer{sealed, plain}[i].Verify(info, &header, payload), kvfolio.ErrCorrupt)
		read, err := ReadRecordHeader(&header)
		must(t, err)
		equal(t, "has a key", read.KeyID != 0, i == 1)
		read.KeyID = 0
		equal(t, "info", read, RecordInfo{Key: keyNumber(5), Layout: Digest{9}, Begin: 4, End: 8,
			Epoch: 3, Writer: 1, PayloadBytes: int64(len(payload))})
		header[0] ^= 1
		_, err = ReadRecordHeader(&header)
		wants(t, err, kvfolio.ErrCorrupt)
	}
	wants(t, plain.Verify(info, nil, payload), kvfolio.ErrInvalidArgument)
	_, err = plain.Seal(nil, payload)
	wants(t, err, kvfolio.ErrInvalidArgument)
	_, err = ReadRecordHeader(nil)
	wants(t, err, kvfolio.ErrInvalidArgument)
	keys := RecordKeys{Key: &secret}
	equal(t, "a key is not printed", fmt.Sprintf("%v %#v", keys, keys),
		"a key, no key accepted a key, no key accepted")
	options := RedisOptions{Servers: "h:1", Password: "a secret"}
	equal(t, "nor a password", fmt.Sprintf("%v %#v", options, options), "Redis at h:1 Redis at h:1")
}

// ---- snapshots ----

func identity(t testing.TB, of *ModelIdentity) *Identity {
	t.Helper()
	names, err := NewIdentity(of, groups(1))
	must(t, err)
	t.Cleanup(names.Close)
	return names
}

func TestASnapshotGivesBackWhatWasSaved(t *testing.T) {
	names := identity(t, model)
	cache := newCache(t, 32)
	opened, err := cache.Open(prompt1(1), &kvfolio.OpenOptions{HasCallerID: true, CallerID: 77})
	must(t, err)
	compute(t, cache, opened.Sequence, prompt1(1), 0)
	other, err := cache.Open(prompt1(2), nil)
	must(t, err)
	compute(t, cache, other.Sequence, prompt1(2), 0)
	must(t, cache.CloseSequence(other.Sequence))
	options := &SaveOptions{Sequences: []SaveSequence{{Sequence: opened.Sequence, Tokens: prompt1(1)}}}
	path := filepath.Join(t.TempDir(), "snapshot")
	saved, err := Save(cache, names, path, options)
	must(t, err)
	bytes, again, err := SaveBytes(cache, names, options)
	must(t, err)
	equal(t, "stats", again, saved)
	equal(t, "bytes", int64(len(bytes)), saved.Bytes)
	info, err := os.Stat(path)
	must(t, err)
	equal(t, "mode", info.Mode().Perm(), os.FileMode(0o600))
	for _, restore := range []func(c *kvfolio.Cache) (*Restored, error){
		func(c *kvfolio.Cache) (*Restored, error) { return Restore(c, names, path, RecordKeys{}) },
		func(c *kvfolio.Cache) (*Restored, error) {
			return RestoreBytes(c, names, bytes, RecordKeys{})
		},
	} {
		next := newCache(t, 40)
		back, err := restore(next)
		must(t, err)
		equal(t, "sequences", len(back.Sequences), 1)
		one := back.Sequences[0]
		equal(t, "sequence", RestoredSequence{one.Sequence, true, 77, prompt1(1), 21}, one)
		equal(t, "loaded", back.Stats.RecordsLoaded, saved.Records)
		checkRows(t, next, one.Sequence, prompt1(1), 21)
		found, err := next.Open(prompt1(2), nil)
		must(t, err)
		equal(t, "found", found.CachedTokens, 20)
		checkRows(t, next, found.Sequence, prompt1(2), 20)
	}
}

func TestASnapshotOfAnotherModelIsRefusedByTheField(t *testing.T) {
	cache := newCache(t, 32)
	opened, err := cache.Open(prompt1(1), nil)
	must(t, err)
	compute(t, cache, opened.Sequence, prompt1(1), 0)
	bytes, _, err := SaveBytes(cache, identity(t, model), nil)
	must(t, err)
	for field, change := range map[string]func(m *ModelIdentity){
		"weights":     func(m *ModelIdentity) { m.Weights = "2" },
		"model_dtype": func(m *ModelIdentity) { m.ModelDType = "bf16" },
		"positions":   func(m *ModelIdentity) { m.Positions = "rope 10000" },
		"engine":      func(m *ModelIdentity) { m.Engine = "another" },
	} {
		other := *model
		change(&other)
		_, err := RestoreBytes(newCache(t, 32), identity(t, &other), bytes, RecordKeys{})
		wants(t, err, kvfolio.ErrInvalidArgument, field)
	}
	_, err = RestoreBytes(newCache(t, 32), identity(t, model), []byte("no snapshot"), RecordKeys{})
	wants(t, err, kvfolio.ErrCorrupt)
	_, err = Restore(newCache(t, 32), identity(t, model), "/no/such/file", RecordKeys{})
	wants(t, err, kvfolio.ErrUnavailable)
	_, err = Save(cache, identity(t, model), "/no/such/folder/file", nil)
	wants(t, err, kvfolio.ErrUnavailable)
}

func TestNoFlippedByteOfASnapshotIsHandedOver(t *testing.T) {
	names := identity(t, model)
	cache := newCache(t, 32)
	opened, err := cache.Open(prompt1(1), nil)
	must(t, err)
	compute(t, cache, opened.Sequence, prompt1(1), 0)
	bytes, saved, err := SaveBytes(cache, names, nil)
	must(t, err)
	refused, cut := 0, 0
	for at := 0; at < len(bytes); at += len(bytes)/97 + 1 {
		damaged := append([]byte(nil), bytes...)
		damaged[at] ^= 0x20
		next := newCache(t, 32)
		back, err := RestoreBytes(next, names, damaged, RecordKeys{})
		if err != nil {
			refused++
			continue
		}
		found, err := next.Open(prompt1(1), nil)
		must(t, err)
		checkRows(t, next, found.Sequence, prompt1(1), found.CachedTokens)
		if back.Stats.RecordsLoaded < saved.Records {
			cut++
		}
	}
	equal(t, "damage was seen", refused+cut > 50, true)
}

func TestASnapshotIsSealedWithAKey(t *testing.T) {
	names := identity(t, model)
	cache := newCache(t, 32)
	opened, err := cache.Open(prompt1(1), nil)
	must(t, err)
	compute(t, cache, opened.Sequence, prompt1(1), 0)
	one, two := [32]byte{1}, [32]byte{2}
	bytes, saved, err := SaveBytes(cache, names, &SaveOptions{Key: &one})
	must(t, err)
	for want, keys := range map[int64]RecordKeys{
		0: {Key: &two}, saved.Records: {Key: &two, Accepted: &one},
	} {
		back, err := RestoreBytes(newCache(t, 32), names, bytes, keys)
		must(t, err)
		equal(t, "loaded", back.Stats.RecordsLoaded, want)
	}
}

// ---- the interface ----

func TestEveryFunctionOfTheHeaderIsCalled(t *testing.T) {
	header, err := os.ReadFile("../../../include/kvfolio/kvfolio_tiers.h")
	must(t, err)
	var text strings.Builder
	names, err := filepath.Glob("*.go")
	must(t, err)
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			source, err := os.ReadFile(name)
			must(t, err)
			text.Write(source)
		}
	}
	functions := regexp.MustCompile(`(?m)^KVFOLIO_C_API [^;(]*?\b(kvfolio_\w+)\(`).FindAllStringSubmatch(
		string(header), -1)
	if n := strings.Count(string(header), "\nKVFOLIO_C_API "); len(functions) != n || n < 60 {
		t.Fatalf("the header has %d functions, and %d were seen", n, len(functions))
	}
	var missing []string
	for _, function := range functions {
		if !regexp.MustCompile(`\b` + function[1] + `\(`).MatchString(text.String()) {
			missing = append(missing, function[1])
		}
	}
	// Those with options do the same.
	equal(t, "what is not called", missing, []string{"kvfolio_restore", "kvfolio_restore_file"})
	equal(t, "ABI", ABIVersion(), uint32(1))
}

func TestResultsEndsAndOperationsHaveNames(t *testing.T) {
	equal(t, "names", fmt.Sprint(Exists, Load, Store, Erase, Op(9)), "exists load store erase invalid")
	equal(t, "names", fmt.Sprint(OK, Miss, Closed, Result(99)), "ok miss closed invalid")
	equal(t, "names", fmt.Sprint(Loaded, LoadPart, LoadForgotten, LoadEnd(99)),
		"loaded part forgotten invalid")
}

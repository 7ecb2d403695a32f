// SPDX-License-Identifier: Apache-2.0

package tiers

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
	"github.com/kvfolio/kvfolio/bindings/go/internal/ctier"
)

// withMethods has a nil pointer to each exported type that has methods, and whether these take one.
var withMethods = map[interface{}]bool{
	(*Buffer)(nil): true, (*Identity)(nil): true, (*ForeignIdentity)(nil): true, (*Sealer)(nil): true,
	(*Tier)(nil): true, (*Offload)(nil): true,
	(*Op)(nil): false, (*Result)(nil): false, (*LoadEnd)(nil): false, (*Left)(nil): false,
	(*RecordKeys)(nil): false, (*RedisOptions)(nil): false,
}

// exportedMethods returns how many exported methods each exported type has in the sources.
func exportedMethods(t *testing.T) map[string]int {
	packages, err := parser.ParseDir(token.NewFileSet(), ".", nil, 0)
	must(t, err)
	methods := map[string]int{}
	for path, file := range packages["tiers"].Files {
		for _, declared := range file.Decls {
			f, isFunction := declared.(*ast.FuncDecl)
			if !isFunction || f.Recv == nil || !f.Name.IsExported() || strings.HasSuffix(path, "_test.go") {
				continue
			}
			receiver := f.Recv.List[0].Type
			if pointer, is := receiver.(*ast.StarExpr); is {
				receiver = pointer.X
			}
			if name := receiver.(*ast.Ident); name.IsExported() {
				methods[name.Name]++
			}
		}
	}
	return methods
}

// callsOn calls each method of a value, with arguments that are zero: none panics, and who returns an
// error returns one.
func callsOn(t *testing.T, of reflect.Value, what string) {
	for i := 0; i < of.NumMethod(); i++ {
		name := of.Type().String() + "." + of.Type().Method(i).Name
		func() {
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("%s on %s: %v", name, what, r)
				}
			}()
			var in []reflect.Value
			for n := 0; n < of.Method(i).Type().NumIn(); n++ {
				in = append(in, reflect.Zero(of.Method(i).Type().In(n)))
			}
			out := of.Method(i).Call(in)
			if len(out) == 0 || out[len(out)-1].Type().String() != "error" {
				return
			}
			err, _ := out[len(out)-1].Interface().(error)
			if !errors.Is(err, kvfolio.ErrFailedPrecondition) {
				t.Errorf("%s on %s: %v", name, what, err)
			}
		}()
	}
}

func TestCallsOnNilZeroAndClosedValuesAreRefused(t *testing.T) {
	listed := map[string]int{}
	for value, pointers := range withMethods {
		of := reflect.TypeOf(value)
		listed[of.Elem().Name()] = of.NumMethod()
		if pointers {
			callsOn(t, reflect.ValueOf(value), "nil")
		}
		callsOn(t, reflect.New(of.Elem()), "a zero value")
	}
	equal(t, "types and their methods", listed, exportedMethods(t))

	o := newOffload(t, newCache(t, 8), newMap(t, ctier.New()))
	ofOffload := o.Identity()
	o.Close()
	disk := newDisk(t, t.TempDir())
	disk.Close()
	names := identity(t, model)
	names.Close()
	sealer, err := NewSealer(RecordKeys{Key: &[32]byte{}})
	must(t, err)
	sealer.Close()
	foreign, err := NewForeignIdentity(&ForeignModel{Engine: "e", Model: "m", Weights: "w",
		ModelDType: "d", Hash: "h", HashSeed: "s", Layout: "l"})
	must(t, err)
	foreign.Close()
	for _, closedOne := range []interface{}{o, ofOffload, disk, names, sealer, foreign} {
		callsOn(t, reflect.ValueOf(closedOne), "a closed value")
	}
	equal(t, "name of a closed tier", disk.Name(), "disk")

	cache := newCache(t, 8)
	for _, tier := range []*Tier{nil, new(Tier), disk} {
		_, err := NewOffload(cache, model, &OffloadOptions{ArenaBytes: 1 << 20},
			[]OffloadTier{{Tier: tier}})
		wants(t, err, kvfolio.ErrFailedPrecondition, "the Tier is closed")
	}
	for _, closedCache := range []*kvfolio.Cache{nil, new(kvfolio.Cache)} {
		_, err := NewOffload(closedCache, model, nil, nil)
		wants(t, err, kvfolio.ErrFailedPrecondition, "the Cache is closed")
		_, err = NewMemoryTier(closedCache, 1<<20, nil)
		wants(t, err, kvfolio.ErrFailedPrecondition, "the Cache is closed")
		_, err = Save(closedCache, names, "/tmp/none", nil)
		wants(t, err, kvfolio.ErrFailedPrecondition)
	}
	for _, closedNames := range []*Identity{nil, new(Identity), names, ofOffload} {
		_, _, err := SaveBytes(cache, closedNames, nil)
		wants(t, err, kvfolio.ErrFailedPrecondition, "the Identity is closed")
		_, err = RestoreBytes(cache, closedNames, nil, RecordKeys{})
		wants(t, err, kvfolio.ErrFailedPrecondition, "the Identity is closed")
	}
}

func TestArgumentsThatCannotBeAreRefused(t *testing.T) {
	cache := newCache(t, 8)
	for _, path := range []string{"a\x00b"} {
		_, err := NewDiskTier(path, &DiskOptions{Bytes: 1 << 20})
		wants(t, err, kvfolio.ErrInvalidArgument, "has a 0 in it")
		_, err = Save(cache, identity(t, model), path, nil)
		wants(t, err, kvfolio.ErrInvalidArgument, "has a 0 in it")
		_, err = Restore(cache, identity(t, model), path, RecordKeys{})
		wants(t, err, kvfolio.ErrInvalidArgument, "has a 0 in it")
	}
	_, err := NewDiskTier(t.TempDir(), nil)
	wants(t, err, kvfolio.ErrInvalidArgument)
	_, err = NewDiskTier(t.TempDir(), &DiskOptions{Bytes: 1 << 20, NumThreads: -1})
	wants(t, err, kvfolio.ErrInvalidArgument)
	_, err = NewDiskTier(t.TempDir(), &DiskOptions{Bytes: 8 << 20, ItemsMax: 1 << 40})
	wants(t, err, kvfolio.ErrInvalidArgument)
	_, err = NewTier(nil)
	wants(t, err, kvfolio.ErrInvalidArgument)
	_, err = NewTier(&Functions{})
	wants(t, err, kvfolio.ErrInvalidArgument, "submit")
	_, err = NewTier(&Functions{Submit: ctier.Submit, Poll: ctier.Poll, DataAlignment: 3})
	wants(t, err, kvfolio.ErrInvalidArgument, "data_alignment")
	_, err = NewOffload(cache, model, nil, nil)
	wants(t, err, kvfolio.ErrInvalidArgument)
	_, err = NewOffload(cache, model, &OffloadOptions{ArenaBytes: 1 << 20, Timeout: -time.Second}, nil)
	wants(t, err, kvfolio.ErrInvalidArgument, "Timeout is -1s")
	_, err = NewOffload(cache, &ModelIdentity{}, &OffloadOptions{ArenaBytes: 1 << 20}, nil)
	wants(t, err, kvfolio.ErrInvalidArgument, "model")
	bare, err := kvfolio.NewCache(groups(8), &kvfolio.Options{ListFindable: true})
	must(t, err)
	defer bare.Close()
	_, err = NewOffload(bare, model, &OffloadOptions{ArenaBytes: 1 << 20}, nil)
	wants(t, err, kvfolio.ErrFailedPrecondition, "storage")

	tier := newMap(t, ctier.New())
	_, err = tier.Submit(Op(7), []Item{{Key: keyNumber(1)}}, time.Time{})
	wants(t, err, kvfolio.ErrInvalidArgument)
	tickets, err := tier.Submit(Exists, nil, time.Time{})
	must(t, err)
	equal(t, "tickets", len(tickets), 0)
	_, err = tier.DiskStats()
	wants(t, err, kvfolio.ErrUnsupported)
	_, err = tier.RedisCounters()
	wants(t, err, kvfolio.ErrUnsupported)
	o := newOffload(t, cache, tier)
	_, err = o.TierCounters(1)
	wants(t, err, kvfolio.ErrInvalidArgument)
	_, err = Save(cache, o.Identity(), t.TempDir()+"/s", &SaveOptions{
		Sequences: []SaveSequence{{Sequence: 99, Tokens: []int32{1}}}})
	wants(t, err, kvfolio.ErrNotFound)
	root, err := kvfolio.NewRoot(kvfolio.RootKey{Model: "m"})
	must(t, err)
	root.Close()
	_, err = o.Open(prompt1(1), &kvfolio.OpenOptions{Root: root})
	wants(t, err, kvfolio.ErrFailedPrecondition, "the Root is closed")
	_, err = o.ForgetRoot(root)
	wants(t, err, kvfolio.ErrFailedPrecondition, "the Root is closed")
	_, err = o.Identity().Root(root, 0)
	wants(t, err, kvfolio.ErrFailedPrecondition, "the Root is closed")
	o.Identity().Close() // it is the Offload's
	_, err = o.Identity().Namespace(0)
	must(t, err)
}

// Two who poll one tier would take each other's answers.
func TestATierIsOfOneUserAtATime(t *testing.T) {
	tier := newMap(t, ctier.New())
	list := buffers(t, 1, 64)
	_, err := tier.Submit(Store, []Item{{keyNumber(1), list[0]}}, time.Time{})
	must(t, err)
	options := &OffloadOptions{ArenaBytes: 1 << 20}
	_, err = NewOffload(newCache(t, 8), model, options, []OffloadTier{{Tier: tier}})
	wants(t, err, kvfolio.ErrFailedPrecondition, "1 items of Submit that are not done")
	_, err = tier.Poll()
	must(t, err)
	_, err = NewOffload(newCache(t, 8), model, options, []OffloadTier{{Tier: tier}, {Tier: tier}})
	wants(t, err, kvfolio.ErrFailedPrecondition, "used by an Offload")
	_, err = tier.Poll() // it is free again
	must(t, err)
	o := newOffload(t, newCache(t, 8), tier)
	for _, misuse := range []func() error{
		func() error { _, err := tier.Poll(); return err },
		func() error { _, err := tier.Wait(time.Time{}); return err },
		func() error { _, err := tier.Submit(Exists, []Item{{}}, time.Time{}); return err },
		func() error { return tier.Stop(time.Time{}) },
		func() error {
			_, err := NewOffload(newCache(t, 8), model, options, []OffloadTier{{Tier: tier}})
			return err
		},
	} {
		wants(t, misuse(), kvfolio.ErrFailedPrecondition, "used by an Offload")
	}
	o.Close()
	_, err = tier.Poll()
	must(t, err)
}

func TestThingsMayEndInAnyOrder(t *testing.T) {
	// The tier first: it stays until its Offload is closed.
	table := ctier.New()
	tier := newMap(t, table)
	o := newOffload(t, newCache(t, 32), tier)
	tier.Close()
	tier.Close()
	equal(t, "destroyed", table.Destroyed(), false)
	serve(t, o, prompt1(1))
	drain(t, o)
	equal(t, "records", table.Len(), 5)
	o.Close()
	o.Close()
	equal(t, "destroyed", table.Destroyed(), true)
	// The cache first.
	disk := newDisk(t, t.TempDir())
	cache := newCache(t, 32)
	o = newOffload(t, cache, disk)
	serve(t, o, prompt1(1))
	equal(t, "is of its cache", o.IsOf(cache) && !o.IsOf(newCache(t, 4)) && !o.IsOf(nil), true)
	cache.Close()
	equal(t, "is of a closed cache", o.IsOf(cache), false)
	_, err := o.Poll()
	wants(t, err, kvfolio.ErrFailedPrecondition, "the Cache is closed")
	_, err = o.Open(prompt1(1), nil)
	wants(t, err, kvfolio.ErrFailedPrecondition)
	_, err = o.Drain(time.Now())
	wants(t, err, kvfolio.ErrFailedPrecondition)
	_, err = o.Epochs()
	wants(t, err, kvfolio.ErrFailedPrecondition)
	wants(t, o.CheckInvariants(), kvfolio.ErrFailedPrecondition)
	o.Close()
	disk.Close()
}

func TestTwoWritersOfADirectoryAreRefused(t *testing.T) {
	directory := t.TempDir()
	newDisk(t, directory)
	_, err := NewDiskTier(directory, &DiskOptions{Bytes: 4 << 20})
	wants(t, err, kvfolio.ErrFailedPrecondition)
}

//go:noinline
func leave(t *testing.T, directory string) {
	_, err := NewBuffer(64)
	must(t, err)
	_, err = NewDiskTier(directory, &DiskOptions{Bytes: 4 << 20})
	must(t, err)
	_, err = NewSealer(RecordKeys{})
	must(t, err)
	_, err = NewIdentity(model, groups(1))
	must(t, err)
	storage, err := kvfolio.NewStorage(groups(8), nil)
	must(t, err)
	cache, err := kvfolio.NewCacheWithStorage(storage, &kvfolio.Options{ListFindable: true})
	must(t, err)
	tier, err := NewMemoryTier(cache, 1<<20, nil)
	must(t, err)
	_, err = NewOffload(cache, model, &OffloadOptions{ArenaBytes: 1 << 20}, []OffloadTier{{Tier: tier}})
	must(t, err)
}

func TestWhatWasNotClosedIsSaid(t *testing.T) {
	said := make(chan string, 64)
	listen(t, func(line string) { said <- line })
	// Its threads stay, so it has no directory of a test, which is removed.
	directory, err := os.MkdirTemp("", "kvfolio-go-leak")
	must(t, err)
	defer os.RemoveAll(directory)
	leave(t, directory)
	seen := map[string]bool{}
	for try := 0; try < 100 && len(seen) < 5; try++ {
		runtime.GC()
		select {
		case line := <-said:
			for _, name := range []string{"Buffer", "Tier", "Sealer", "Identity", "Offload"} {
				if strings.Contains(line, "a "+name+" made at ") && strings.Contains(line, "mistakes_test.go:") {
					seen[name] = true
				}
			}
		case <-time.After(20 * time.Millisecond):
		}
	}
	equal(t, "what was said", len(seen), 5)
}

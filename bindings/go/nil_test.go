// SPDX-License-Identifier: Apache-2.0

package kvfolio

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"reflect"
	"strings"
	"testing"
)

// zeros returns an argument for each parameter of a method: its zero value.
func zeros(method reflect.Value) []reflect.Value {
	var in []reflect.Value
	for i := 0; i < method.Type().NumIn(); i++ {
		in = append(in, reflect.Zero(method.Type().In(i)))
	}
	return in
}

// withMethods has a nil pointer to each exported type that has methods.
var withMethods = []interface{}{(*Cache)(nil), (*Root)(nil), (*Storage)(nil), (*View)(nil),
	(*TokenStore)(nil), (*BlockStore)(nil), (*ThreadPool)(nil), (*OpLog)(nil), (*Plan)(nil),
	(*Error)(nil), (*Code)(nil), (*Target)(nil)}

// isCUDA is set with the build tag cuda, whose types are then among withMethods.
var isCUDA bool

// exportedMethods returns how many exported methods each exported type has in the sources.
func exportedMethods(t *testing.T) map[string]int {
	packages, err := parser.ParseDir(token.NewFileSet(), ".", nil, 0)
	must(t, err)
	methods := map[string]int{}
	for path, file := range packages["kvfolio"].Files {
		for _, declared := range file.Decls {
			f, isFunction := declared.(*ast.FuncDecl)
			if strings.HasPrefix(path, "cuda") && !isCUDA {
				continue
			}
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

func TestEveryTypeWithMethodsIsTriedWithoutAValue(t *testing.T) {
	listed := map[string]int{}
	for _, value := range withMethods {
		of := reflect.TypeOf(value)
		listed[of.Elem().Name()] = of.NumMethod()
	}
	equal(t, "types and their methods", listed, exportedMethods(t))
}

// callsOn calls each method of a value, with arguments that are zero: none panics, and who
// returns an error returns one, but Close, which closes nothing. TableOf panics, as it says, for what is
// not there.
func callsOn(t *testing.T, of reflect.Value, what string) {
	for i := 0; i < of.NumMethod(); i++ {
		name := of.Type().String() + "." + of.Type().Method(i).Name
		if name == "*kvfolio.Plan.TableOf" {
			continue
		}
		func() {
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("%s on %s: %v", name, what, r)
				}
			}()
			out := of.Method(i).Call(zeros(of.Method(i)))
			if len(out) == 0 || out[len(out)-1].Type().String() != "error" {
				return
			}
			last, isError := out[len(out)-1].Interface().(error)
			var e *Error
			if isError == strings.HasSuffix(name, ".Close") {
				t.Errorf("%s on %s: error %v", name, what, last)
			}
			if isError && !errors.As(last, &e) {
				t.Errorf("%s on %s: %v", name, what, last)
			}
		}()
	}
}

// An error or zero, and no panic.
func TestCallsOnNilAndOnZeroValuesAreRefused(t *testing.T) {
	for _, value := range withMethods {
		of := reflect.TypeOf(value)
		callsOn(t, reflect.New(of.Elem()), "a zero value")
		if of.Elem().Kind() == reflect.Struct {
			callsOn(t, reflect.ValueOf(value), "nil")
		}
	}
}

// Arguments that are not zero reach further: rows are compared with what a view shows.
func TestZeroValuesAreRefusedWithArgumentsToo(t *testing.T) {
	row := RowsF32(make([]float32, 8), 1, 1, 8)
	for _, view := range []*View{nil, new(View)} {
		wants(t, AppendRows(view, 0, row, row, []int32{0}), ErrFailedPrecondition)
		wants(t, WriteToken(view, 0, 0, 0, row, row), ErrFailedPrecondition)
		wants(t, ReadToken(view, 0, 0, 0, row, row), ErrFailedPrecondition)
		wants(t, Gather(view, []int32{0}, GatherOptions{Length: 1, Count: 1}, row, row),
			ErrFailedPrecondition)
		wants(t, CopyBlocks(view, []int32{0}, []int32{0}), ErrFailedPrecondition)
		wants(t, ConvertBlocks(view, view, []int32{0}, []int32{0}), ErrFailedPrecondition)
		_, err := ChooseTarget(view, TargetAuto)
		wants(t, err, ErrFailedPrecondition)
		wants(t, Attend(&Attention{Cache: view, Q: row, Out: row, Batch: Batch{
			QueryStart: []int32{0, 1}, KVLens: []int32{1}, BlockTable: []int32{0},
			BlockTableStride: 1}}), ErrFailedPrecondition)
	}
	for _, store := range []*TokenStore{nil, new(TokenStore)} {
		wants(t, store.Append(row, row), ErrFailedPrecondition)
		wants(t, store.Gather(0, row, row), ErrFailedPrecondition)
	}
	_, err := NewCacheWithStorage(new(Storage), nil)
	wants(t, err, ErrFailedPrecondition)
	c, err := NewCache(small(4), nil)
	must(t, err)
	defer c.Close()
	wants(t, c.CopyTo(new(Cache)), ErrFailedPrecondition)
	wants(t, c.Record(new(OpLog)), ErrFailedPrecondition)
	_, err = c.Open(nil, &OpenOptions{Root: new(Root)})
	wants(t, err, ErrFailedPrecondition)
	wants(t, Attend(&Attention{Batch: Batch{QueryStart: []int32{0}}, Pool: new(ThreadPool)}),
		ErrFailedPrecondition)
}

func TestNilArgumentsAreRefused(t *testing.T) {
	wants(t, Attend(nil), ErrInvalidArgument)
	wants(t, AppendRows(nil, 0, Rows{}, Rows{}, nil), ErrFailedPrecondition)
	wants(t, CopyBlocks(nil, nil, nil), ErrFailedPrecondition)
	_, err := NewCacheWithStorage(nil, nil)
	wants(t, err, ErrFailedPrecondition)
	_, err = NewCache(nil, nil)
	wants(t, err, ErrInvalidArgument)
	c, err := NewCache(small(4), nil)
	must(t, err)
	defer c.Close()
	wants(t, c.CopyTo(nil), ErrFailedPrecondition)
	_, err = c.View(0, 0)
	wants(t, err, ErrUnsupported)
}

func TestAPriorityThatDoesNotFitIsRefused(t *testing.T) {
	c, err := NewCache(small(4), nil)
	must(t, err)
	defer c.Close()
	opened, err := c.Open(nil, &OpenOptions{Priority: math.MinInt32})
	must(t, err)
	for _, priority := range []int{math.MaxInt32 + 1, math.MinInt32 - 1, math.MaxInt64} {
		wants(t, c.SetPriority(opened.Sequence, priority), ErrInvalidArgument)
		_, err := c.Open(nil, &OpenOptions{Priority: priority})
		wants(t, err, ErrInvalidArgument)
		_, err = c.Fork(opened.Sequence, &ForkOptions{Priority: priority})
		wants(t, err, ErrInvalidArgument)
	}
	if c.NumSequences() != 1 {
		t.Fatal("a call that was refused opened a sequence")
	}
	must(t, c.SetPriority(opened.Sequence, math.MaxInt32))
}

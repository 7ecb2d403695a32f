// SPDX-License-Identifier: Apache-2.0

package kvfolio

import (
	"errors"
	"math"
	"reflect"
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

// Each method of each type, on nil: an error or zero, and no panic.
func TestCallsOnNilAreRefused(t *testing.T) {
	count := 0
	for _, value := range []interface{}{(*Cache)(nil), (*Root)(nil), (*Storage)(nil), (*View)(nil),
		(*TokenStore)(nil), (*BlockStore)(nil), (*ThreadPool)(nil), (*OpLog)(nil)} {
		of := reflect.ValueOf(value)
		for i := 0; i < of.NumMethod(); i++ {
			name := of.Type().String() + "." + of.Type().Method(i).Name
			func() {
				defer func() {
					if r := recover(); r != nil {
						t.Errorf("%s on nil: %v", name, r)
					}
				}()
				out := of.Method(i).Call(zeros(of.Method(i)))
				count++
				if len(out) == 0 {
					return
				}
				last, isError := out[len(out)-1].Interface().(error)
				if out[len(out)-1].Type().String() == "error" && !isError {
					t.Errorf("%s on nil: no error", name)
				}
				var e *Error
				if isError && !errors.As(last, &e) {
					t.Errorf("%s on nil: %v", name, last)
				}
			}()
		}
	}
	if count < 90 {
		t.Fatalf("only %d methods were called", count)
	}
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

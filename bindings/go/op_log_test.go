// SPDX-License-Identifier: Apache-2.0

package kvfolio

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recorded makes calls of several kinds, two that fail among them, and returns all answers as text.
// There are rounds times 8 calls that change the cache.
func recorded(t *testing.T, c *Cache, rounds int) string {
	t.Helper()
	var said strings.Builder
	for round := 0; round < rounds; round++ {
		prompt := tokensFrom(0, 20+round%7)
		opened, err := c.Open(prompt, nil)
		must(t, err)
		ticket, err := c.BeginStep(0)
		must(t, err)
		must(t, c.Append(opened.Sequence, prompt[opened.CachedTokens:], 0))
		refused := c.Append(opened.Sequence, []int32{-1}, 0)
		plan, err := c.Plan(nil)
		must(t, err)
		fmt.Fprintln(&said, opened, refused, plan.Groups[0].SlotMapping)
		must(t, c.Finish(ticket))
		must(t, c.CloseSequence(opened.Sequence))
		fmt.Fprintln(&said, c.CloseSequence(opened.Sequence))
	}
	hash, err := c.StateHash()
	must(t, err)
	return fmt.Sprint(said.String(), hash)
}

func TestEqualRunsWriteEqualFiles(t *testing.T) {
	plain, err := NewCache(small(32), nil)
	must(t, err)
	defer plain.Close()
	want := recorded(t, plain, 300)
	var files [][]byte
	for _, flush := range []bool{false, false, true, true} {
		path := filepath.Join(t.TempDir(), "calls.oplog")
		log, err := NewOpLog(path, flush)
		must(t, err)
		defer log.Close()
		c := newTestCache(t, small(32), nil)
		must(t, c.Record(log))
		if got := recorded(t, c, 300); got != want {
			t.Fatalf("with a log the cache says %s, without %s", got, want)
		}
		must(t, log.Flush())
		cut, err := os.ReadFile(path)
		must(t, err)
		must(t, c.Record(nil))
		must(t, log.Status())
		equal(t, "calls", log.NumCalls(), 300*8)
		info, err := os.Stat(path)
		must(t, err)
		equal(t, "mode", info.Mode().Perm(), os.FileMode(0o600))
		whole, err := os.ReadFile(path)
		must(t, err)
		if len(cut) >= len(whole) || !bytes.Equal(cut, whole[:len(cut)]) {
			t.Fatalf("%d bytes before the end, %d after it", len(cut), len(whole))
		}
		files = append(files, whole)
	}
	// What each call flushes is a piece of its own, with a checksum.
	for i := 0; i < len(files); i += 2 {
		if len(files[i]) < 16384 || !bytes.Equal(files[i], files[i+1]) {
			t.Fatalf("the files have %d and %d bytes", len(files[i]), len(files[i+1]))
		}
	}
	if len(files[2]) <= len(files[0]) {
		t.Fatalf("%d bytes in pieces of one call, %d else", len(files[2]), len(files[0]))
	}
}

func TestALogThatIsClosedFirstIsWrittenToItsEnd(t *testing.T) {
	var files [][]byte
	for _, first := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "calls.oplog")
		log, err := NewOpLog(path, false)
		must(t, err)
		c := newTestCache(t, small(32), nil)
		must(t, c.Record(log))
		if first {
			log.Close()
			wants(t, log.Status(), ErrFailedPrecondition)
			wants(t, c.Record(log), ErrFailedPrecondition) // and the recording goes on
		}
		recorded(t, c, 3)
		must(t, c.Record(nil))
		log.Close()
		log.Close()
		file, err := os.ReadFile(path)
		must(t, err)
		files = append(files, file)
	}
	if len(files[0]) < 100 || !bytes.Equal(files[0], files[1]) {
		t.Fatalf("the files have %d and %d bytes", len(files[0]), len(files[1]))
	}
}

func TestAFileToWhichALogIsBeingWrittenIsRefusedAndKeepsWhatItHas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.oplog")
	log, err := NewOpLog(path, true)
	must(t, err)
	c := newTestCache(t, small(32), nil)
	must(t, c.Record(log))
	recorded(t, c, 3)
	_, err = NewOpLog(path, false)
	e := wants(t, err, ErrUnavailable)
	if !strings.Contains(e.Message, path+": another log is being written to it") {
		t.Fatal(e)
	}
	recorded(t, c, 3)
	must(t, c.Record(nil))
	must(t, log.Status())
	equal(t, "calls", log.NumCalls(), 6*8)
	file, err := os.ReadFile(path)
	must(t, err)
	if len(file) < 100 {
		t.Fatalf("the file has %d bytes", len(file))
	}
	log.Close()
	again, err := NewOpLog(path, false) // it is given back
	must(t, err)
	again.Close()
}

func TestAnErrorOfALogChangesNoAnswer(t *testing.T) {
	_, err := NewOpLog("/nowhere/calls.oplog", false)
	if e := wants(t, err, ErrUnavailable); !strings.Contains(e.Message, "/nowhere/calls.oplog") {
		t.Fatal(e)
	}
	_, err = NewOpLog("a\x00b", false)
	wants(t, err, ErrInvalidArgument)

	used, plain := newTestCache(t, small(32), nil), newTestCache(t, small(32), nil)
	recorded(t, used, 1)
	recorded(t, plain, 1)
	log, err := NewOpLog(filepath.Join(t.TempDir(), "late.oplog"), false)
	must(t, err)
	defer log.Close()
	must(t, used.Record(log))
	equal(t, "answers", recorded(t, used, 3), recorded(t, plain, 3))
	wants(t, log.Status(), ErrFailedPrecondition)
	wants(t, log.Flush(), ErrFailedPrecondition)
	equal(t, "calls", log.NumCalls(), 0)
}

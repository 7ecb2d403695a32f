// SPDX-License-Identifier: Apache-2.0

package kvfolio_test

import (
	"os"
	"strings"
	"testing"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
)

// serve is what README.md shows.
func serve(prompt []int32) error {
	// readme: begin
	cache, err := kvfolio.NewCache([]kvfolio.GroupSpec{{NumKVHeads: 8, HeadDimK: 128,
		HeadDimV: 128, NumBlocks: 4096}}, nil)
	if err != nil {
		return err
	}
	defer cache.Close()
	opened, err := cache.Open(prompt, nil) // finds and holds
	if err != nil {
		return err
	}
	ticket, err := cache.BeginStep(0)
	if err != nil {
		return err
	}
	_, err = cache.AppendPrompt(opened.Sequence, prompt, len(prompt))
	if err != nil {
		_ = cache.Drop(ticket) // ErrNoBlocks: or Preempt another sequence, and append again
		return err
	}
	plan, err := cache.Plan(nil) // slots, tables, copies
	if err != nil {
		return err
	}
	copyWriteAndAttend(plan.Groups[0].SlotMapping)
	return cache.Finish(ticket) // plan is not to be read any more
	// readme: end
}

func copyWriteAndAttend([]int32) {}

func TestReadmeShowsWhatRuns(t *testing.T) {
	if err := serve([]int32{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	body := strings.Split(strings.Split(string(source), "// readme: begin\n")[1], "\t// readme: end")[0]
	shown := strings.ReplaceAll("\n"+body, "\n\t", "\n")
	if !strings.Contains(string(readme), "```go"+shown+"```") {
		t.Fatalf("README.md does not show what runs here:%s", shown)
	}
}

// SPDX-License-Identifier: Apache-2.0

package tiers

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
)

// With a server where there is one: redis-server in PATH, or what scripts/redis-here unpacked. Without
// one, and without hiredis, a test says that it was skipped.

func newRedis(t *testing.T, options *RedisOptions) (*Tier, error) {
	t.Helper()
	tier, err := NewRedisTier(options)
	if errors.Is(err, kvfolio.ErrUnsupported) {
		t.Skipf("SKIPPED: %v", err)
	}
	if err == nil {
		t.Cleanup(tier.Close)
	}
	return tier, err
}

func startServer(t *testing.T) string {
	t.Helper()
	program, err := filepath.Abs("../../../build/redis/bin/redis-server")
	must(t, err)
	if _, err := os.Stat(program); err != nil {
		if program, err = exec.LookPath("redis-server"); err != nil {
			t.Skip("SKIPPED: no redis-server here; scripts/redis-here unpacks one")
		}
	}
	for start := 0; start < 5; start++ {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		address := listener.Addr().String()
		listener.Close()
		server := exec.Command(program, "--bind", "127.0.0.1", "--port", address[strings.Index(address, ":")+1:],
			"--save", "", "--appendonly", "no", "--requirepass", "a secret")
		server.Dir = t.TempDir()
		must(t, server.Start())
		ended := make(chan error, 1)
		go func() { ended <- server.Wait() }()
		t.Cleanup(func() {
			_ = server.Process.Kill()
			<-ended
		})
		for try := 0; try < 1000 && len(ended) == 0; try++ { // it ends if the port was taken meanwhile
			conn, err := net.Dial("tcp", address)
			time.Sleep(10 * time.Millisecond)
			if err == nil {
				conn.Close()
				time.Sleep(100 * time.Millisecond)
				if len(ended) == 0 { // it is not another's
					return address
				}
			}
		}
	}
	t.Fatal("redis-server does not listen")
	return ""
}

func TestWhatOneEngineComputedAnotherOneFindsInRedis(t *testing.T) {
	address := startServer(t)
	options := &RedisOptions{Servers: address, Password: "a secret", TTL: time.Minute,
		Keys: RecordKeys{Key: &[32]byte{7}}}
	for run, want := range []int{0, 20} {
		redis, err := newRedis(t, options)
		must(t, err)
		must(t, redis.WaitUntilReady(10*time.Second))
		o := newOffload(t, newCache(t, 32), redis)
		found, _ := serve(t, o, prompt1(1))
		equal(t, "found", found, want)
		drain(t, o)
		counters, err := redis.RedisCounters()
		must(t, err)
		equal(t, "run and traffic", []bool{counters.Connections > 0, counters.BytesSent > 0}[run%2], true)
		if !strings.Contains(redis.Describe(), address) || strings.Contains(redis.Describe(), "a secret") {
			t.Fatal(redis.Describe())
		}
		o.Close()
		redis.Close()
	}
	// Alone, where the descriptor is one of epoll.
	redis, err := newRedis(t, options)
	must(t, err)
	must(t, redis.WaitUntilReady(10*time.Second))
	equal(t, "descriptor", redis.EventFD() >= 0, true)
	keys, list, back := make([]Key, 8), buffers(t, 8, 3000), buffers(t, 8, 3000)
	for i := range keys {
		keys[i] = keyNumber(i)
		fill(list[i].Bytes(), i)
	}
	equal(t, "stored", count(all(t, redis, Store, keys, list), OK), 8)
	equal(t, "loaded", count(all(t, redis, Load, keys, back), OK), 8)
	for i := range back {
		equal(t, "bytes are the same", reflect.DeepEqual(back[i].Bytes(), list[i].Bytes()), true)
	}
	// Another key believes none of them.
	other := *options
	other.Keys = RecordKeys{Key: &[32]byte{8}}
	stranger, err := newRedis(t, &other)
	must(t, err)
	must(t, stranger.WaitUntilReady(10*time.Second))
	equal(t, "not believed", count(all(t, stranger, Load, keys, back), Miss), 8)
	met, err := stranger.RedisCounters()
	must(t, err)
	equal(t, "of another key", met.OfAnotherKey, uint64(8))
	wrong := *options
	wrong.Password = "not it"
	refused, err := newRedis(t, &wrong)
	must(t, err)
	wants(t, refused.WaitUntilReady(100*time.Millisecond), kvfolio.ErrTimedOut)
}

func TestAServerThatIsNotThereIsNamed(t *testing.T) {
	redis, err := newRedis(t, &RedisOptions{Servers: "127.0.0.1:1"})
	must(t, err)
	wants(t, redis.WaitUntilReady(10*time.Millisecond), kvfolio.ErrTimedOut, "127.0.0.1:1")
	// The calls of an engine go on: what it computes is stored nowhere.
	o, err := NewOffload(newCache(t, 32), model, &OffloadOptions{ArenaBytes: 1 << 20},
		[]OffloadTier{{Tier: redis}})
	must(t, err)
	defer o.Close()
	found, _ := serve(t, o, prompt1(1))
	equal(t, "found", found, 0)
}

func TestRedisOptionsThatCannotBeAreRefused(t *testing.T) {
	if _, err := NewRedisTier(nil); !errors.Is(err, kvfolio.ErrInvalidArgument) {
		t.Fatal(err)
	}
	for _, options := range []RedisOptions{
		{},
		{Servers: "127.0.0.1"},
		{Servers: "127.0.0.1:1", Password: "a\x00b"},
		{Servers: "127.0.0.1:1", User: "someone"}, // without a password
		{Servers: "127.0.0.1:1", KeyPrefix: "{slot}"},
		{Servers: "127.0.0.1:1", TLS: &RedisTLS{CAFile: "/no/such/file"}},
		{Servers: "127.0.0.1:1", ItemsMax: -1},
		{Servers: "127.0.0.1:1", TTL: time.Microsecond},
		{Servers: "127.0.0.1:1", StallTimeout: -time.Second},
		{Servers: "127.0.0.1:1", BreakerMin: 1},
	} {
		_, err := newRedis(t, &options)
		wants(t, err, kvfolio.ErrInvalidArgument)
	}
}

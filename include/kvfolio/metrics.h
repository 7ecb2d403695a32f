// SPDX-License-Identifier: Apache-2.0
#pragma once

// Metrics in the text format of Prometheus, for what an engine serves at /metrics:
//
//   Metrics metrics;
//   metrics.add(manager, {{{"model_name", "llama"}}});
//   add_metrics(metrics, *offload);               // tier_metrics.h, in libkvfolio_tiers
//   reply(metrics.text());
//
// Names are kvfolio_ with the unit last (_bytes, _tokens, _blocks, _seconds), counters end in
// _total; hits are counted in tokens. A host with dashboards for vLLM or SGLang asks for their
// names too. A Metrics keeps no count of its own: each counter has the value of the object that was
// added.
//
// Labels are the host's own. A tenant's salt is a secret and does not belong in one: name tenants
// by an index or a name of yours. Names that Prometheus does not allow are changed to names that it
// allows, and values are escaped, so no label breaks the text.
//
// https://prometheus.io/docs/instrumenting/exposition_formats. Thread safety: none.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvfolio/export.h"

namespace kvfolio {

class KVCacheManager;  // manager.h

struct MetricLabel {
  std::string_view name{};
  std::string_view value{};
};
using MetricLabels = std::span<const MetricLabel>;

// Aliases beside our own names. Bits: kVllm | kSglang is both.
enum class MetricNames : std::int32_t { kNative = 0, kVllm = 1, kSglang = 2, kAll = 3 };

class Metrics {
 public:
  // What the manager counts and holds, each group with the label `group`.
  KVFOLIO_API void add(const KVCacheManager& manager, MetricLabels labels = {},
                       MetricNames names = MetricNames::kNative);

  // Metrics of the host's own. `name` and `help` of the first call for a name stand. A counter's
  // name ends in _total.
  KVFOLIO_API void counter(std::string_view name, std::string_view help, MetricLabels labels,
                           std::uint64_t value);
  KVFOLIO_API void gauge(std::string_view name, std::string_view help, MetricLabels labels,
                         double value);
  // `counts[i]` are the values at most bounds[i], and the last one the values above all bounds; so
  // counts has one element more. `sum` is of all values.
  KVFOLIO_API void histogram(std::string_view name, std::string_view help, MetricLabels labels,
                             std::span<const double> bounds, std::span<const std::uint64_t> counts,
                             double sum);

  // Every metric once, in the order of their names, each with its help and type in front.
  [[nodiscard]] KVFOLIO_API std::string text() const;

 private:
  struct Family {
    std::string type, help;
    std::vector<std::string> lines;
  };
  Family& family(std::string_view name, std::string_view help, const char* type);

  std::map<std::string, Family, std::less<>> families_;  // by name
};

// A whole text of one manager.
KVFOLIO_API void write_metrics(std::string& out, const KVCacheManager& manager,
                               MetricLabels labels = {}, MetricNames names = MetricNames::kNative);

}  // namespace kvfolio

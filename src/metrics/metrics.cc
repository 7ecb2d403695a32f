// SPDX-License-Identifier: Apache-2.0
//
// The text format: names, labels, numbers. manager_metrics.cc says what a manager has.

#include "kvfolio/metrics.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/text.h"
#include "kvfolio/manager.h"

namespace kvfolio {

namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The name of a metric, or with `colon` false of a label.
std::string allowed_name(std::string_view name, bool colon) {
  std::string out;
  for (const char c : name) {
    const bool fine = is_letter(c) || (is_digit(c) && !out.empty()) || (colon && c == ':');
    out += fine ? c : '_';
  }
  // Names with two underscores in front are Prometheus's own.
  if (!colon && out.starts_with("__")) out.insert(0, "label");
  return out.empty() ? "_" : out;
}

// How many bytes of UTF-8 stand at the front of `text`; 0: none that are valid.
std::size_t utf8_length(std::string_view text) {
  const auto at = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned first = at(0);
  if (first < 0x80) return 1;
  const std::size_t length = first < 0xc2   ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0u) != 0x80u) return 0;
  }
  // Forms that are too long, surrogates, and what lies beyond Unicode.
  if (first == 0xe0 && at(1) < 0xa0) return 0;
  if (first == 0xed && at(1) > 0x9f) return 0;
  if (first == 0xf0 && at(1) < 0x90) return 0;
  if (first == 0xf4 && at(1) > 0x8f) return 0;
  return length;
}

std::string escaped(std::string_view value, bool quotes) {
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD
  std::string out;
  while (!value.empty()) {
    const std::size_t length = utf8_length(value);
    const char c = value.front();
    if (length == 0) {
      out += kReplacement;
    } else if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quotes) {
      out += "\\\"";
    } else {
      out += value.substr(0, length);
    }
    value.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

// "{a="b",c="d"}", or nothing. The later one of two labels with one name counts.
std::string label_text(MetricLabels labels, std::string_view own = {}) {
  std::vector<std::pair<std::string, std::string>> kept;
  for (const MetricLabel& label : labels) {
    std::string name = allowed_name(label.name, false);
    const auto same =
        std::find_if(kept.begin(), kept.end(), [&](const auto& one) { return one.first == name; });
    std::string value = escaped(label.value, true);
    if (same != kept.end()) {
      same->second = std::move(value);
    } else {
      kept.emplace_back(std::move(name), std::move(value));
    }
  }
  std::string out;
  for (const auto& [name, value] : kept) {
    // `le` of a histogram is the format's.
    if (!own.empty() && name == "le") continue;
    out += text::concat(out.empty() ? "" : ",", name, "=\"", value, "\"");
  }
  if (!own.empty()) out += text::concat(out.empty() ? "" : ",", own);
  return out.empty() ? out : "{" + out + "}";
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

}  // namespace

Metrics::Family& Metrics::family(std::string_view name, std::string_view help, const char* type) {
  const auto [place, is_new] = families_.try_emplace(allowed_name(name, true));
  if (is_new) {
    place->second.type = type;
    place->second.help = escaped(help, false);
  }
  return place->second;
}

void Metrics::counter(std::string_view name, std::string_view help, MetricLabels labels,
                      std::uint64_t value) {
  family(name, help, "counter")
      .lines.push_back(text::concat(allowed_name(name, true), label_text(labels), " ", value));
}

void Metrics::gauge(std::string_view name, std::string_view help, MetricLabels labels,
                    double value) {
  family(name, help, "gauge")
      .lines.push_back(
          text::concat(allowed_name(name, true), label_text(labels), " ", number(value)));
}

void Metrics::histogram(std::string_view name, std::string_view help, MetricLabels labels,
                        std::span<const double> bounds, std::span<const std::uint64_t> counts,
                        double sum) {
  KVFOLIO_CHECK(counts.size() == bounds.size() + 1);
  const std::string own = allowed_name(name, true);
  std::vector<std::string>& lines = family(name, help, "histogram").lines;
  std::uint64_t so_far = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    so_far += counts[i];
    const std::string bound = i < bounds.size() ? number(bounds[i]) : "+Inf";
    lines.push_back(text::concat(
        own, "_bucket", label_text(labels, text::concat("le=\"", bound, "\"")), " ", so_far));
  }
  lines.push_back(text::concat(own, "_sum", label_text(labels), " ", number(sum)));
  lines.push_back(text::concat(own, "_count", label_text(labels), " ", so_far));
}

std::string Metrics::text() const {
  std::string out;
  for (const auto& [name, family] : families_) {
    if (!family.help.empty()) out += text::concat("# HELP ", name, " ", family.help, "\n");
    out += text::concat("# TYPE ", name, " ", family.type, "\n");
    for (const std::string& line : family.lines) out += line + "\n";
  }
  return out;
}

void write_metrics(std::string& out, const KVCacheManager& manager, MetricLabels labels,
                   MetricNames names) {
  Metrics metrics;
  metrics.add(manager, labels, names);
  out += metrics.text();
}

}  // namespace kvfolio

// SPDX-License-Identifier: Apache-2.0

// Records of numbers: read-only fields, equal if all are, and a repr that shows them.

#include <cstddef>

#include "bindings.h"

namespace kvfolio::python {
namespace {

template <typename T>
class Record {
 public:
  Record(nb::module_& m, const char* name, const char* doc) : class_(m, name, doc) {}

  template <typename Field>
  Record& field(const char* name, Field field, const char* doc = "") {
    class_.def_ro(name, field, doc);
    names_.append(nb::str(name));
    return *this;
  }
  void done() {
    const nb::tuple names(names_);
    class_.attr("_fields") = names;
    class_
        .def("__repr__",
             [](nb::handle self) {
               std::string text = nb::str(self.type().attr("__name__")).c_str() + std::string("(");
               const char* separator = "";
               for (const nb::handle each : nb::borrow<nb::object>(self.type().attr("_fields"))) {
                 text += separator + std::string(nb::str(each).c_str()) + "=" +
                         nb::repr(nb::getattr(self, each)).c_str();
                 separator = ", ";
               }
               return text + ")";
             })
        .def(
            "to_dict",
            [](nb::handle self) {
              nb::dict all;
              for (const nb::handle each : nb::borrow<nb::object>(self.type().attr("_fields"))) {
                all[each] = nb::getattr(self, each);
              }
              return all;
            },
            nb::sig("def to_dict(self) -> dict[str, typing.Any]"));
  }

 private:
  nb::class_<T> class_;
  nb::list names_;
};

void add_info(nb::module_& m) {
  Record<SequenceInfo> info(m, "SequenceInfo", "What Manager.info() says of a sequence.");
  info.field("length", &SequenceInfo::length, "Tokens, those of the open step included.")
      .field("accepted_length", &SequenceInfo::accepted_length, "Without draft tokens.")
      .field("published_length", &SequenceInfo::published_length,
             "Tokens of its path on the prefix tree.")
      .field("trim_sinks", &SequenceInfo::trim_sinks,
             "Positions [trim_sinks, trim_first_kept) were dropped by trims.")
      .field("trim_first_kept", &SequenceInfo::trim_first_kept)
      .field("in_open_step", &SequenceInfo::in_open_step)
      .field("num_unnamed", &SequenceInfo::num_unnamed, "Tokens that set_tokens() may name now.")
      .field("reserved_tokens", &SequenceInfo::reserved_tokens)
      .field("caller_id", &SequenceInfo::caller_id)
      .field("max_tokens", &SequenceInfo::max_tokens)
      .field("priority", &SequenceInfo::priority)
      .field("last_use", &SequenceInfo::last_use)
      .field("use_count", &SequenceInfo::use_count)
      .field(
          "rewinds", &SequenceInfo::rewinds,
          "How often tokens of committed steps were cut: a row of an earlier plan is void if its "
          "sequence is gone or Plan.rewinds says another number.")
      .field("rewind_from", &SequenceInfo::rewind_from,
             "truncate() to this length or more is refused only while the sequence is in the open "
             "step.")
      .done();
}

void add_usage(nb::module_& m) {
  Record<GroupUsage> usage(
      m, "GroupUsage", "Blocks of a group by state; free + held + cached + retiring = num_blocks.");
  usage.field("num_blocks", &GroupUsage::num_blocks)
      .field("free", &GroupUsage::free)
      .field("held", &GroupUsage::held, "Referenced by sequences, pins or an Offload.")
      .field("cached", &GroupUsage::cached, "Findable, without references.")
      .field("retiring", &GroupUsage::retiring, "Free or cached when the steps are complete.")
      .field("evictable", &GroupUsage::evictable, "Equals cached.")
      .field("reserved", &GroupUsage::reserved, "Of the held ones: kept by reserve().")
      .field("loading", &GroupUsage::loading, "Of the held ones: an Offload loads them.")
      .field("on_hold", &GroupUsage::on_hold, "References of an Offload that copies them away.")
      .done();
}

void add_counters(nb::module_& m) {
  Record<Counters> counters(m, "Counters", "Counts since the manager was made.");
  counters.field("blocks_allocated", &Counters::blocks_allocated)
      .field("blocks_freed", &Counters::blocks_freed)
      .field("blocks_evicted", &Counters::blocks_evicted)
      .field("blocks_unhung", &Counters::blocks_unhung)
      .field("block_copies", &Counters::block_copies, "Copy-on-write, planned and committed.")
      .field("sequences_opened", &Counters::sequences_opened)
      .field("sequences_closed", &Counters::sequences_closed)
      .field("sequences_preempted", &Counters::sequences_preempted)
      .field("sequences_aborted", &Counters::sequences_aborted)
      .field("forks", &Counters::forks)
      .field("tokens_looked_up", &Counters::tokens_looked_up, "Of all open() calls.")
      .field("tokens_reused", &Counters::tokens_reused, "cached_tokens of all open() calls.")
      .field("tokens_committed", &Counters::tokens_committed)
      .field("blocks_published", &Counters::blocks_published)
      .field("publications_skipped", &Counters::publications_skipped)
      .field("blocks_used_peak", &Counters::blocks_used_peak)
      .field("tokens_loaded", &Counters::tokens_loaded,
             "That an Offload or restore() brought and that stood.")
      .field("announcements_skipped", &Counters::announcements_skipped,
             "open() calls that were to announce and had no room to.")
      .done();
}

}  // namespace

nb::object make_record(const char* name, const nb::tuple& fields) {
  return new_record("kvfolio._types", name, fields);
}

nb::list ended_list(const std::vector<EndedSequence>& ended) {
  nb::list list;
  for (const EndedSequence& each : ended) {
    const nb::object caller = each.caller_id ? nb::cast(*each.caller_id) : nb::none();
    list.append(make_record("EndedSequence", nb::make_tuple(each.sequence.value(), caller)));
  }
  return list;
}

void add_records(nb::module_& m) {
  add_info(m);
  add_usage(m);
  add_counters(m);
}

}  // namespace kvfolio::python

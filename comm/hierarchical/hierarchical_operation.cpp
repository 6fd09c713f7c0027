#include "hierarchical/hierarchical_operation.h"

#include <algorithm>
#include <type_traits>

#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

static_assert(std::is_trivially_copyable_v<HostNote>);

std::size_t index_of(Step step) {
  return static_cast<std::size_t>(step);
}

bool is_narrow(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16;
}

bool by_rank(Kind kind) {
  return kind == Kind::kReduceScatter || kind == Kind::kAllGather;
}

}  // namespace

HierarchicalOperation::HierarchicalOperation(const Descriptor& descriptor, const void* in, void* out, Levels& levels)
    : descriptor_(descriptor), in_(in), out_(out), levels_(levels) {
  shape_.widened = reduces(descriptor_.kind) && is_narrow(descriptor_.type);
  shape_.type = shape_.widened ? DataType::kFloat32 : descriptor_.type;
  shape_.element = size_of(shape_.type);
  shape_.total = by_rank(descriptor_.kind) ? descriptor_.count * levels_.placement.ranks() : descriptor_.count;
  for (std::size_t r = 0; r < levels_.placement.ranks(); ++r) shape_.slot = std::max(shape_.slot, part(r).size());
}

Part HierarchicalOperation::part(std::size_t rank) const {
  const std::size_t count = descriptor_.count;
  if (by_rank(descriptor_.kind)) return {rank * count, (rank + 1) * count};
  return part_of(count, descriptor_.type, static_cast<int>(rank), static_cast<int>(levels_.placement.ranks()));
}

std::byte* HierarchicalOperation::own_part() const {
  auto* const out = static_cast<std::byte*>(out_);
  if (descriptor_.kind == Kind::kReduceScatter) return out;
  return out + part(static_cast<std::size_t>(levels_.rank)).begin * size_of(descriptor_.type);
}

const std::byte* HierarchicalOperation::own_input() const {
  const auto* const in = static_cast<const std::byte*>(in_);
  if (descriptor_.kind == Kind::kAllGather) return in;
  return in + part(static_cast<std::size_t>(levels_.rank)).begin * size_of(descriptor_.type);
}

HierarchicalOperation::Bytes HierarchicalOperation::room(std::size_t elements) const {
  return std::make_unique<std::byte[]>(std::max<std::size_t>(elements * shape_.element, 1));
}

bool HierarchicalOperation::advance(Turns& turns) {
  bool moved = false;
  for (std::size_t s = 0; s < kSteps; ++s) {
    const auto step = static_cast<Step>(s);
    if (!issued_[s] && turns[s] == descriptor_.sequence && may_issue(step)) {
      // Set first, because the calls that follow may fail.
      issued_[s] = true;
      ++turns[s];
      if (levels_.on[s]) works_[s] = issue(step);
      moved = true;
    }
    if (!issued_[s] || done_[s] || (works_[s] && !works_[s].test())) continue;
    done_[s] = true;
    moved = true;
    if (works_[s] && is_mean() && step == (levels_.several_hosts() ? Step::kOuter : Step::kUp)) divide();
    if (step == Step::kNotes) compare_host();
    if (step == Step::kOuterNotes) compare_hosts();
  }
  if (!finished_ && done_[index_of(Step::kDown)]) {
    finish();
    finished_ = true;
  }
  return moved;
}

bool HierarchicalOperation::may_issue(Step step) const {
  const auto done = [this](Step before) { return done_[index_of(before)]; };
  switch (step) {
    case Step::kNotes:
      return true;
    case Step::kUp:
      return done(Step::kNotes) && same_here_;
    case Step::kOuterNotes:
      return done(Step::kNotes) && (same_here_ || levels_.on[index_of(step)]);
    case Step::kOuter:
    case Step::kDown:
      return done(Step::kUp) && done(Step::kOuterNotes) && (step == Step::kOuter || done(Step::kOuter));
  }
  return false;
}

Work HierarchicalOperation::issue(Step step) {
  switch (step) {
    case Step::kNotes:
      return issue_notes();
    case Step::kUp:
      return issue_up();
    case Step::kOuterNotes:
      return issue_outer_notes();
    case Step::kOuter:
      return issue_outer();
    case Step::kDown:
      return issue_down();
  }
  return {};
}

Work HierarchicalOperation::issue_notes() {
  notes_.resize(levels_.here().size());
  notes_[levels_.index()] = descriptor_;
  return levels_.on[index_of(Step::kNotes)]->all_gather(&notes_[levels_.index()], notes_.data(), sizeof(Descriptor),
                                                        DataType::kUint8);
}

void HierarchicalOperation::compare_host() {
  host_note_.lowest = notes_.empty() ? descriptor_ : notes_[0];
  for (std::size_t i = 1; i < notes_.size() && host_note_.other_rank < 0; ++i) {
    if (same_operation(notes_[i], notes_[0])) continue;
    host_note_.other = notes_[i];
    host_note_.other_rank = levels_.here()[i];
  }
  same_here_ = host_note_.other_rank < 0;
  if (levels_.several_hosts()) return;  // the hosts' lowest ranks exchange notes first
  host_notes_ = {host_note_};
  compare_hosts();
}

Work HierarchicalOperation::issue_outer_notes() {
  host_notes_.resize(levels_.placement.hosts.size());
  HostNote& own = host_notes_[levels_.host()];
  own = host_note_;
  return levels_.on[index_of(Step::kOuterNotes)]->all_gather(&own, host_notes_.data(), sizeof(HostNote),
                                                             DataType::kUint8);
}

void HierarchicalOperation::compare_hosts() {
  if (host_notes_.empty()) return;  // this rank's host has another one that compares
  const Descriptor& first = host_notes_[0].lowest;
  std::vector<std::pair<int, const Descriptor*>> others;
  for (std::size_t host = 0; host < host_notes_.size(); ++host) {
    const HostNote& note = host_notes_[host];
    if (!same_operation(note.lowest, first)) others.emplace_back(levels_.placement.hosts[host][0], &note.lowest);
    if (note.other_rank >= 0 && !same_operation(note.other, first)) others.emplace_back(note.other_rank, &note.other);
  }
  if (others.empty()) return;
  std::sort(others.begin(), others.end());
  std::string text = "the ranks entered different operations as their operation " +
                     std::to_string(descriptor_.sequence) + ": rank 0 " + describe(first);
  constexpr std::size_t kShown = 3;
  for (std::size_t i = 0; i < std::min(others.size(), kShown); ++i) {
    text += ", rank " + std::to_string(others[i].first) + " " + describe(*others[i].second);
  }
  differs_ = true;
  throw CommError(text);
}

std::string HierarchicalOperation::describe_missing() const {
  std::string text;
  for (std::size_t s = 0; s < kSteps && text.empty(); ++s) {
    if (!issued_[s] || done_[s] || !works_[s]) continue;
    const auto step = static_cast<Step>(s);
    const bool between_hosts = step == Step::kOuter || step == Step::kOuterNotes;
    for (const MissingRank& one : works_[s].missing()) {
      const auto i = static_cast<std::size_t>(one.rank);
      const int rank = between_hosts ? levels_.placement.hosts[i][0] : levels_.here()[i];
      text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) + " ";
      text += between_hosts && levels_.placement.hosts[i].size() > 1 ? "or another of its host " : "";
      text += one.lacks;
    }
  }
  return text.empty() ? "no rank any more" : text;
}

}  // namespace dtrain::comm

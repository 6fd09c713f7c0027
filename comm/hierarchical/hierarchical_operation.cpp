#include "hierarchical/hierarchical_operation.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "collective/reduce.h"
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

void move_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

bool scatters(Kind kind) {
  return kind == Kind::kReduceScatter || kind == Kind::kReduceParts;
}

bool gathers(Kind kind) {
  return kind == Kind::kAllGather || kind == Kind::kGatherParts;
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
    const Step last_reduction = levels_.several_hosts() ? Step::kOuter : Step::kUp;
    if (works_[s] && is_mean() && step == last_reduction && holds_result()) divide();
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
    for (const MissingRank& missing : works_[s].missing()) {
      const auto i = static_cast<std::size_t>(missing.rank);
      const int rank = between_hosts ? levels_.placement.hosts[i][0] : levels_.here()[i];
      text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) + " ";
      text += between_hosts && levels_.placement.hosts[i].size() > 1 ? "or another of its host " : "";
      text += missing.lacks;
    }
  }
  return text.empty() ? "no rank any more" : text;
}

// Scales are applied once: pre_scale to the inputs of the first existing level, post_scale to the result of the last.
ReduceOptions HierarchicalOperation::options_on(bool first, bool last) const {
  ReduceOptions options{.op = descriptor_.op, .bucket = descriptor_.bucket};
  if (first && !shape_.widened) options.pre_scale = descriptor_.pre_scale;
  if (options.op == ReduceOp::kMean) {
    options.op = ReduceOp::kSum;  // divide() then makes the mean
  } else if (last) {
    options.post_scale = descriptor_.post_scale;
  }
  return options;
}

bool HierarchicalOperation::holds_result() const {
  if (descriptor_.kind != Kind::kReduce) return true;
  return levels_.several_hosts() ? levels_.is_leader() && root_host() == levels_.host() : is_root();
}

// Divides a mean by all ranks at once, as a single level would: multiplying by a rounded reciprocal gives other bits.
void HierarchicalOperation::divide() {
  const bool in_block = scatters(descriptor_.kind) && levels_.several_hosts();
  const bool in_place = descriptor_.kind == Kind::kAllReduce && !shape_.widened;
  std::byte* const data = descriptor_.kind == Kind::kReduce ? reduced()
                          : in_block                        ? block_.get()
                          : in_place                        ? static_cast<std::byte*>(out_)
                                                            : values_.get();
  const std::size_t count = in_block ? slots_of_host() : shape_.total;
  Reduction reduction = reduction_of(descriptor_, static_cast<int>(levels_.placement.ranks()));
  reduction.type = shape_.type;
  reduction.pre_scale = 1.0;
  const std::byte* const from = data;
  reduce_into(reduction, {&from, 1}, {&data, 1}, count);
}

void HierarchicalOperation::widen() {
  values_ = room(shape_.total);
  to_float32(descriptor_.type, in_, reinterpret_cast<float*>(values_.get()), shape_.total,
             static_cast<float>(descriptor_.pre_scale));
}

// Scales the values of a rank alone on its host: the values of larger hosts come scaled to the hosts' level.
void HierarchicalOperation::scale() {
  values_ = room(shape_.total);
  const auto* const from = static_cast<const std::byte*>(in_);
  std::byte* const to = values_.get();
  reduce_into({shape_.type, ReduceOp::kSum, descriptor_.pre_scale, 1.0, 1}, {&from, 1}, {&to, 1}, shape_.total);
}

void HierarchicalOperation::put(const std::byte* from, std::byte* to, std::size_t count) const {
  if (count == 0) return;
  if (shape_.widened) {
    from_float32(descriptor_.type, reinterpret_cast<const float*>(from), to, count);
  } else {
    move_bytes(to, from, count * shape_.element);
  }
}

Work HierarchicalOperation::issue_up() {
  Communicator& host = *levels_.on[static_cast<std::size_t>(Step::kUp)];
  const bool last = !levels_.several_hosts();
  switch (descriptor_.kind) {
    case Kind::kAllReduce:
      if (shape_.widened) {
        widen();
        return host.all_reduce(values_.get(), values_.get(), shape_.total, shape_.type, options_on(true, last));
      }
      return host.all_reduce(in_, out_, shape_.total, shape_.type, options_on(true, last));
    case Kind::kReduceScatter:
    case Kind::kReduceParts:
      if (shape_.widened) {
        widen();
        return host.all_reduce(values_.get(), values_.get(), shape_.total, shape_.type, options_on(true, last));
      }
      values_ = room(shape_.total);
      return host.all_reduce(in_, values_.get(), shape_.total, shape_.type, options_on(true, last));
    case Kind::kReduce: {
      if (shape_.widened) widen();
      const void* const from = values();
      if (last) {
        return host.reduce(from, reduced(), shape_.total, shape_.type, static_cast<int>(root_index()),
                           options_on(true, true));
      }
      if (levels_.is_leader() && !values_) values_ = room(shape_.total);
      return host.reduce(from, values_.get(), shape_.total, shape_.type, 0, options_on(true, false));
    }
    case Kind::kAllGather:
    case Kind::kGatherParts: {
      block_ = room(slots_of_host());
      std::byte* const own = block_.get() + levels_.index() * shape_.slot * shape_.element;
      move_bytes(own, own_input(), part(static_cast<std::size_t>(levels_.rank)).size() * shape_.element);
      return host.all_gather(own, block_.get(), shape_.slot, shape_.type, descriptor_.bucket);
    }
    case Kind::kBroadcast: {
      if (root_host() != levels_.host()) return {};
      return host.broadcast(out_, shape_.total, shape_.type, static_cast<int>(root_index()));
    }
    default:
      return {};
  }
}

Work HierarchicalOperation::issue_outer() {
  Communicator& hosts = *levels_.on[static_cast<std::size_t>(Step::kOuter)];
  const bool alone = !levels_.several_here();
  const bool first = levels_.placement.most == 1;  // the other hosts decide the same
  if (reduces(descriptor_.kind) && alone) {
    if (shape_.widened) {
      widen();
    } else if (!first && descriptor_.pre_scale != 1.0) {
      scale();
    }
  }
  switch (descriptor_.kind) {
    case Kind::kAllReduce:
      if (shape_.widened) {
        return hosts.all_reduce(values_.get(), values_.get(), shape_.total, shape_.type, options_on(first, true));
      }
      return hosts.all_reduce(alone ? values() : out_, out_, shape_.total, shape_.type, options_on(first, true));
    case Kind::kReduceScatter:
    case Kind::kReduceParts: {
      const Placement& placement = levels_.placement;
      packed_ = room(placement.hosts.size() * slots_of_host());
      block_ = room(slots_of_host());
      for (std::size_t r = 0; r < placement.ranks(); ++r) {
        const Part theirs = part(r);
        const std::size_t slot = placement.host_of[r] * placement.most + placement.index_of[r];
        move_bytes(packed_.get() + slot * shape_.slot * shape_.element,
                   static_cast<const std::byte*>(values()) + theirs.begin * shape_.element,
                   theirs.size() * shape_.element);
      }
      return hosts.reduce_scatter(packed_.get(), block_.get(), slots_of_host(), shape_.type, options_on(first, true));
    }
    case Kind::kAllGather:
    case Kind::kGatherParts:
      if (alone) {
        block_ = room(slots_of_host());
        move_bytes(block_.get(), own_input(), part(static_cast<std::size_t>(levels_.rank)).size() * shape_.element);
      }
      packed_ = room(levels_.placement.hosts.size() * slots_of_host());
      return hosts.all_gather(block_.get(), packed_.get(), slots_of_host(), shape_.type, descriptor_.bucket);
    case Kind::kReduce:
      return hosts.reduce(values(), reduced(), shape_.total, shape_.type, static_cast<int>(root_host()),
                          options_on(first, true));
    case Kind::kBroadcast:
      return hosts.broadcast(out_, shape_.total, shape_.type, static_cast<int>(root_host()));
    default:
      return {};
  }
}

Work HierarchicalOperation::issue_down() {
  if (!levels_.several_hosts()) return {};
  Communicator& host = *levels_.on[static_cast<std::size_t>(Step::kDown)];
  switch (descriptor_.kind) {
    case Kind::kAllReduce:
      if (levels_.is_leader() && shape_.widened) put(values_.get(), static_cast<std::byte*>(out_), shape_.total);
      return host.broadcast(out_, descriptor_.count, descriptor_.type, 0);
    case Kind::kReduceScatter:
    case Kind::kReduceParts:
      if (!block_) block_ = room(slots_of_host());
      return host.broadcast(block_.get(), slots_of_host(), shape_.type, 0);
    case Kind::kAllGather:
    case Kind::kGatherParts:
      if (levels_.is_leader()) unpack(packed_.get(), levels_.placement.hosts.size());
      return host.broadcast(out_, shape_.total, shape_.type, 0);
    case Kind::kBroadcast:
      // The root's host has the data. Its ranks wait until all ranks are known to have entered the same operation.
      if (root_host() == levels_.host()) return host.barrier();
      return host.broadcast(out_, shape_.total, shape_.type, 0);
    case Kind::kReduce:
      // The lowest rank has the result. It reaches the root by way of all ranks of their host.
      if (root_host() != levels_.host() || root_index() == 0) return host.barrier();
      if (!reduced()) values_ = room(shape_.total);
      return host.broadcast(reduced(), shape_.total, shape_.type, 0);
    default:
      return host.barrier();
  }
}

void HierarchicalOperation::unpack(const std::byte* collected, std::size_t hosts) {
  const Placement& placement = levels_.placement;
  for (std::size_t r = 0; r < placement.ranks(); ++r) {
    const std::size_t host = hosts == 1 ? 0 : placement.host_of[r];
    const std::size_t slot = host * placement.most + placement.index_of[r];
    const Part theirs = part(r);
    move_bytes(static_cast<std::byte*>(out_) + theirs.begin * shape_.element,
               collected + slot * shape_.slot * shape_.element, theirs.size() * shape_.element);
  }
}

// Moves the results on this rank to their final place.
void HierarchicalOperation::finish() {
  const bool several_hosts = levels_.several_hosts();
  const bool came_down = several_hosts && levels_.several_here();
  const Part mine = part(static_cast<std::size_t>(levels_.rank));
  if (levels_.placement.ranks() == 1) {
    if (reduces(descriptor_.kind)) {
      const auto* const in = static_cast<const std::byte*>(in_);
      auto* const out = static_cast<std::byte*>(out_);
      reduce_into(reduction_of(descriptor_, 1), {&in, 1}, {&out, 1}, shape_.total);
    } else if (descriptor_.kind == Kind::kAllGather) {
      move_bytes(out_, in_, shape_.total * shape_.element);
    }
  } else if (descriptor_.kind == Kind::kAllReduce) {
    if (shape_.widened && !came_down) put(values_.get(), static_cast<std::byte*>(out_), shape_.total);
  } else if (descriptor_.kind == Kind::kReduce) {
    if (shape_.widened && is_root()) put(values_.get(), static_cast<std::byte*>(out_), shape_.total);
  } else if (scatters(descriptor_.kind)) {
    const std::byte* const from = several_hosts ? block_.get() + levels_.index() * shape_.slot * shape_.element
                                                : static_cast<const std::byte*>(values()) + mine.begin * shape_.element;
    put(from, own_part(), mine.size());
  } else if (gathers(descriptor_.kind) && !came_down) {
    if (several_hosts) {
      unpack(packed_.get(), levels_.placement.hosts.size());
    } else {
      unpack(block_.get(), 1);
    }
  }
  values_.reset();
  packed_.reset();
  block_.reset();
}

}  // namespace dtrain::comm

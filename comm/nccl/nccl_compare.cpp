// Compares the operations of the ranks. NCCL does not compare: calls that differ make it hang or mix up data. So:
//   the first operations and every allocation are compared with rank 0's before they reach NCCL: a rank that differs
//   stops, with both in its error, and its failure stops the others through the control plane;
//   at a time-out each rank that waits publishes what it entered last, and reads what the others published.
#include <algorithm>
#include <thread>

#include <nlohmann/json.hpp>

#include "dtrain/base/error.h"
#include "dtrain/base/units.h"
#include "nccl/nccl_core.h"

namespace dtrain::comm {
namespace {

constexpr std::size_t kRemembered = 64;
constexpr std::chrono::milliseconds kSlice{20};  // time until an abort is noticed
// Bounds of the time by which the others may time out later than this rank and still be counted.
constexpr std::chrono::milliseconds kLeastGrace{200};
constexpr std::chrono::milliseconds kMostGrace{3'000};

}  // namespace

void NcclCore::remember(const NcclEntry& entry) {
  const std::scoped_lock lock(mutex_);
  last_.push_back(entry);
  if (last_.size() > kRemembered) last_.pop_front();
}

void NcclCore::compare_with_first(const std::vector<Descriptor>& descriptors) {
  if (world_size() == 1) return;
  const Nanoseconds began = now();
  for (const Descriptor& own : descriptors) {
    const std::string text = describe(own);
    const std::string key = setup_.nccl.name + "/operation/" + std::to_string(own.sequence);
    if (rank() == 0) {
      setup_.control.set(key, text);
      continue;
    }
    std::optional<std::string> first;
    while (!first) {
      try {
        first = setup_.control.get_within(key, kSlice);
      } catch (const CommError& error) {
        fail(error.what(), false);
      }
      throw_if_failed();
      if (first || now() - began < Nanoseconds(setup_.options.timeout)) continue;
      fail("rank " + std::to_string(rank()) + ": " +
               describe_waiting({own, nullptr}, now() - began, "timed out after") +
               "; missing: rank 0 has not entered it (" + std::string(name_of(setup_.control.peer_state(0))) + ")",
           true);
    }
    if (*first == text) continue;
    fail("the ranks entered different operations as their operation " + std::to_string(own.sequence) + ": rank 0 " +
             *first + ", rank " + std::to_string(rank()) + " " + text,
         true);
    throw_if_failed();
  }
}

std::string NcclCore::describe_others(const NcclEntry& waited_for) {
  using Json = nlohmann::json;
  const auto key = [&](int r) { return setup_.nccl.name + "/stopped/" + std::to_string(r); };
  Json mine = Json::object();
  std::uint64_t issued = 0;
  {
    const std::scoped_lock lock(mutex_);
    for (const NcclEntry& one : last_) mine[std::to_string(one.descriptor.sequence)] = describe(one);
    if (!last_.empty()) issued = last_.back().descriptor.sequence + 1;
  }
  setup_.control.set(key(rank()), Json{{"issued", issued}, {"last", mine}}.dump());

  const auto grace = std::clamp(setup_.options.timeout / 2, kLeastGrace, kMostGrace);
  const Nanoseconds until = now() + Nanoseconds(grace);
  const std::string sequence = std::to_string(waited_for.descriptor.sequence);
  const std::string own = describe(waited_for);
  std::string missing, different;
  for (int r = 0; r < world_size(); ++r) {
    if (r == rank()) continue;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - now());
    const auto published = setup_.control.get_within(key(r), std::max(left, std::chrono::milliseconds(1)));
    const std::string name = "rank " + std::to_string(r);
    const std::string state = " (" + std::string(name_of(setup_.control.peer_state(r))) + ")";
    if (!published) {
      missing += (missing.empty() ? "" : "; ") + name + " is not waiting for it" + state;
      continue;
    }
    const Json theirs = Json::parse(*published, nullptr, false);
    if (!theirs.is_object() || !theirs.contains("last") || !theirs["last"].is_object()) continue;
    const auto entered = theirs["last"].find(sequence);
    if (entered != theirs["last"].end() && entered->is_string()) {
      if (const auto text = entered->get<std::string>(); text != own) different += ", " + name + " " + text;
    } else if (theirs.value("issued", std::uint64_t{0}) <= waited_for.descriptor.sequence) {
      missing += (missing.empty() ? "" : "; ") + name + " has not entered it" + state;
    }
  }
  std::string text;
  if (!different.empty()) {
    text = "the ranks entered different operations as their operation " + sequence + ": rank " +
           std::to_string(rank()) + " " + own + different;
  }
  if (!missing.empty()) text += (text.empty() ? "missing: " : "; missing: ") + missing;
  return text.empty() ? "every rank has entered it, and NCCL does not finish it" : text;
}

}  // namespace dtrain::comm

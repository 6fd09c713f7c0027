// One outstanding collective over two levels, as steps on the communicators below.
//
// Each step has a communicator of its own, because operations of one communicator end in the order of issue:
//   notes        (host)   the operation descriptors of the host's ranks; all ranks compare them
//   up           (host)   the host's values are reduced or collected
//   outer notes  (hosts)  the hosts' operation descriptors; complete once every rank has entered the operation
//   outer        (hosts)  the hosts' values are reduced or collected
//   down         (host)   the result goes to the host's ranks (of a reduce: on the root's host)
// Each communicator issues operations in order, independently of the others: `turns` keeps that order. A rank skips
// the steps that it has no part in and the levels that do not exist. Called on the communicator's thread alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "collective/descriptor.h"
#include "dtrain/comm/communicator.h"
#include "hierarchical/topology.h"

namespace dtrain::comm {

enum class Step : std::size_t { kNotes, kUp, kOuterNotes, kOuter, kDown };
inline constexpr std::size_t kSteps = 5;

struct Levels {
  int rank = 0;
  Placement placement;
  std::array<std::unique_ptr<Communicator>, kSteps> on;  // null: no such level, or this rank has no part in it

  std::size_t host() const { return placement.host_of[static_cast<std::size_t>(rank)]; }
  std::size_t index() const { return placement.index_of[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& here() const { return placement.hosts[host()]; }
  bool several_here() const { return here().size() > 1; }
  bool several_hosts() const { return placement.hosts.size() > 1; }
  bool is_leader() const { return index() == 0; }
};

using Turns = std::array<std::uint64_t, kSteps>;  // sequence number of the next operation on each communicator

// The report of a host to the other hosts: its lowest rank's operation, and its first rank with another operation.
struct HostNote {
  Descriptor lowest;  // of the host's lowest rank
  Descriptor other;
  std::int32_t other_rank = -1;  // the first of the host whose operation is another one; -1: none
};

class HierarchicalOperation {
 public:
  HierarchicalOperation(const Descriptor& descriptor, const void* in, void* out, Levels& levels);

  const Descriptor& descriptor() const { return descriptor_; }
  bool begun() const { return issued_[0]; }
  bool host_entered() const { return done_[0]; }  // every rank of this host has entered it
  bool finished() const { return finished_; }
  // True if any data moved. CommError if ranks have entered different operations, or a level fails.
  bool advance(Turns& turns);
  // Returns "rank 2 has not entered it (…)", with ranks numbered as in the run.
  std::string describe_missing() const;
  // True if the ranks did not enter the same operation; the error message names them.
  bool differs() const { return differs_; }

 private:
  using Bytes = std::unique_ptr<std::byte[]>;
  struct Shape {
    DataType type;        // of the operations of the levels below
    std::size_t element;  // its bytes
    bool widened;         // narrow values are reduced in float32
    std::size_t slot;     // elements of the largest part
    std::size_t total;    // elements of all parts
  };

  bool may_issue(Step step) const;
  Work issue(Step step);
  Work issue_notes();
  Work issue_outer_notes();
  Work issue_up();
  Work issue_outer();
  Work issue_down();
  void compare_host();
  void compare_hosts();
  void finish();

  Part part(std::size_t rank) const;
  std::byte* own_part() const;
  const std::byte* own_input() const;
  std::size_t slots_of_host() const { return levels_.placement.most * shape_.slot; }
  ReduceOptions options_on(bool first, bool last) const;
  const void* values() const { return values_ ? static_cast<const void*>(values_.get()) : in_; }
  bool is_root() const { return descriptor_.root == levels_.rank; }
  std::size_t root_host() const { return levels_.placement.host_of[static_cast<std::size_t>(descriptor_.root)]; }
  std::size_t root_index() const { return levels_.placement.index_of[static_cast<std::size_t>(descriptor_.root)]; }
  // The memory of a reduce() for the result of all levels, or of the levels so far; null: none yet on this rank.
  std::byte* reduced() const { return is_root() && !shape_.widened ? static_cast<std::byte*>(out_) : values_.get(); }
  // True once the last level has reduced, on the rank that it has given the result to.
  bool holds_result() const;
  bool is_mean() const { return reduces(descriptor_.kind) && descriptor_.op == ReduceOp::kMean; }
  void divide();
  void widen();
  void scale();
  void put(const std::byte* from, std::byte* to, std::size_t count) const;  // converts Shape::type to the operation's
  void unpack(const std::byte* collected, std::size_t hosts);
  Bytes room(std::size_t elements) const;

  const Descriptor descriptor_;
  const void* const in_;
  void* const out_;
  Levels& levels_;
  Shape shape_{};

  std::array<bool, kSteps> issued_{};
  std::array<bool, kSteps> done_{};
  std::array<Work, kSteps> works_;
  bool same_here_ = false;
  bool differs_ = false;
  bool finished_ = false;
  std::vector<Descriptor> notes_;  // of the host's ranks, by index
  HostNote host_note_;
  std::vector<HostNote> host_notes_;  // by host
  Bytes values_;                      // the host's result; null: in out_, or in in_
  Bytes packed_;                      // all parts, by host and index, a slot each
  Bytes block_;                       // this host's
};

}  // namespace dtrain::comm

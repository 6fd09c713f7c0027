// The last operations of each rank, for errors, and for PyTorch's analysis of them (its "flight recorder").
//
// Each rank of a host has a ring in memory that they share. So a rank that hangs, is stopped or was killed needs not
// help when the others name its last operation, or write its ring to a file.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/shared_memory.h"
#include "dtrain/comm/control.h"
#include "flight_record.h"

namespace dtrain::torch_distributed {

struct FlightRing;
struct FlightSlot;

class FlightRecorder {
 public:
  // Collective over the ranks of the world. `hosts`: the number of each rank's host; `names`: by which PyTorch's
  // programs know them.
  FlightRecorder(comm::ControlPlane& control, std::vector<int> hosts, std::vector<int> names);
  ~FlightRecorder();
  FlightRecorder& operator=(FlightRecorder&&) = delete;
  // The control plane is about to go. Records and files are still there.
  void close();

  // Returns the place of a group in this rank's table; -1 if that is full: its operations are not recorded then.
  std::int32_t add_group(const std::string& name, const std::string& description, const std::vector<int>& ranks);
  // Returns the slot, which becomes that of another operation 2000 operations later; null without a group.
  FlightSlot* add(const FlightRecord& record);
  static std::string text_of(const FlightSlot& slot, std::uint64_t number);
  static std::uint64_t number_of(const FlightSlot& slot);
  static void end(FlightSlot& slot, std::uint64_t number);

  // Returns "last collective of rank 1: all_reduce #512, train.py:87; of rank 2: …". The ranks are those of the world.
  std::string last_of(const std::vector<int>& ranks) const;

  // Writes the records of this rank to PREFIX and its number; returns the file's name.
  std::string write(const std::string& prefix) const;
  // Writes those of all ranks of this host where TORCH_FR_DUMP_TEMP_FILE says, else to the run's folder, unless a rank
  // of this host has just done so. Returns what an error should say of it; empty: there is neither.
  std::string write_after_failure() const;

  // Returns the recorder of the newest world; null: there is none.
  static std::shared_ptr<FlightRecorder> newest();
  static void set_newest(const std::shared_ptr<FlightRecorder>& recorder);

 private:
  class Publisher;
  const FlightRing* ring_of(int rank) const;  // null: on another host
  std::string last_text_of(int rank) const;
  void write_to(const std::string& path, int rank) const;

  const int rank_;
  const std::vector<int> hosts_, names_;
  SharedMemory memory_;
  FlightRing* own_ = nullptr;
  std::mutex mutex_;  // of the threads that add
  mutable std::mutex control_mutex_;
  comm::ControlPlane* control_ = nullptr;  // null once it is gone
  std::unique_ptr<Publisher> publisher_;
};

// The record of one operation, which has a place in a ring.
class FlightEntry {
 public:
  FlightEntry() = default;
  FlightEntry(std::shared_ptr<FlightRecorder> recorder, const FlightRecord& record)
      : recorder_(std::move(recorder)), slot_(recorder_->add(record)) {
    if (slot_) number_ = FlightRecorder::number_of(*slot_);
  }
  void end() {
    if (slot_) FlightRecorder::end(*slot_, number_);
  }
  // As FlightRecord's; empty: the slot is that of another operation by now.
  std::string text() const { return slot_ ? FlightRecorder::text_of(*slot_, number_) : std::string(); }

 private:
  std::shared_ptr<FlightRecorder> recorder_;
  FlightSlot* slot_ = nullptr;
  std::uint64_t number_ = 0;
};

}  // namespace dtrain::torch_distributed

// How a GPU spent the time of a few observed batches: what its kernels and copies took, by kind, and why it had no work
// between them. A trace of a rank shows it, and so does a record of the work of the GPU alone, which a rank makes now
// and then (profile/kernels-rank-NNNN.json; docs/profile-format.md describes the file). One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::profile {

enum class WorkKind {
  kProducts,     // kernels of matrix products, convolutions and attention
  kMemoryBound,  // all other kernels but NCCL's
  kExchange,     // NCCL's kernels
  kCopies,       // copies and fills
};
inline constexpr std::size_t kWorkKinds = 4;
std::string_view name_of(WorkKind kind);  // "products", "memory_bound", "exchange", "copies"

// True for the names of kernels that multiply matrices. `name`: in lower case and without underscores.
bool is_product_kernel(std::string_view name);
// Returns the kind of a work by its name as CUPTI reports it.
WorkKind kind_of_work(std::string_view name);

// From the first to the last work in each record or trace, summed.
struct GpuWindow {
  std::int64_t batches = 0;        // of all these ranks; 0: the work of a GPU is in no record and no trace
  std::int64_t works = 0;          // kernels, copies and fills
  double busy_s = 0, idle_s = 0;   // some work ran; none did
  std::int64_t late_launches = 0;  // works whose launch ended after the GPU had become idle, by at most 100 us
  double launch_gaps_s = 0;        // of idle_s: the gaps before these works
  double late_launch_s = 0;        // from the end of the launch before to the end of theirs, summed
  double work_before_s = 0;        // what the works before them took, summed
  std::int64_t graphs = 0;         // CUDA graphs that were launched
  // By kind: what the works took; and busy_s, where each moment counts for the first kind that runs then.
  std::array<double, kWorkKinds> work_s{}, own_s{};

  double work_of(WorkKind kind) const { return work_s[static_cast<std::size_t>(kind)]; }
  double own_of(WorkKind kind) const { return own_s[static_cast<std::size_t>(kind)]; }
  void add(const GpuWindow& other);
};

Json to_json(const GpuWindow& window);
// A value that is missing, negative or no number is 0. Throws nothing.
GpuWindow gpu_window_of(const Json& json);

// Times are in microseconds since any moment that all of them share.
class GpuWindowCounter {
 public:
  // Takes a kernel, a copy or a fill. `correlation`: with the call that launched it; 0: not known.
  void add_work(std::string_view name, double start_us, double end_us, std::int64_t correlation);
  // Takes a call of the CUDA runtime or the driver.
  void add_call(std::string_view name, double end_us, std::int64_t correlation);
  // Adds what these works and calls show of these batches. Without works it adds nothing.
  void count(std::int64_t batches, GpuWindow& into);
  // True if a CUDA graph was launched of which no work was recorded. After count().
  bool lacks_work_of_graphs() const;

 private:
  struct Work {
    double start_us = 0, end_us = 0;
    WorkKind kind = WorkKind::kMemoryBound;
    std::int64_t correlation = 0;
  };
  struct Call {
    double end_us = 0;
    bool is_graph = false;
    bool has_work = false;  // a work of this call has been counted
  };
  void count_gaps(GpuWindow& into);
  void count_kinds(GpuWindow& into) const;

  std::vector<Work> works_;
  std::unordered_map<std::int64_t, Call> calls_;  // by correlation
};

inline constexpr int kKernelTimesSchema = 1;

// "kernels-rank-0003.json"
std::string kernel_times_file_name(int rank);

// The observed batches of a rank. Once a CUDA graph was observed, only batches that are such graphs count.
struct KernelTimes {
  int rank = 0;
  std::string host;
  std::int64_t first_batch = 0, last_batch = 0;  // the first and the last batch that was observed
  double cost_s = 0;                             // what observing took, all batches but the last
  GpuWindow window;
};

Json to_json(const KernelTimes& times);
// DataError: the schema is not known.
KernelTimes kernel_times_of(const Json& json);

}  // namespace dtrain::profile

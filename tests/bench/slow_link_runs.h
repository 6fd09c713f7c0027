// How bench_slow_link runs one contestant, ours or DistributedDataParallel's: on this machine without a link, for its
// losses, or on two hosts joined by a shaped link, for its step times.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "contestant.h"
#include "hosts.h"

namespace dtrain::bench {

struct Workload {
  std::string name;       // "transformer" or "fashion", as slow_link_models.py makes them
  int batch = 0;          // of a rank; there are two
  int steps = 0;          // of the run whose losses are looked at
  int period = 0;         // steps between validations
  int inner_steps = 0;    // of local steps; divides `period`, so that every validation falls on a meeting of the ranks
  double target = 0;      // the validation loss that counts
  double topk_ratio = 0;  // of top-k
  int final_steps = 0;    // of the longer runs whose final accuracies are compared; 0: `steps` are enough
};

struct Method {
  std::string name;
  bool ours = true;
  std::string setting;         // ours: the YAML of `optimizations`; peer: the communication hook
  int uncompressed_steps = 0;  // in the first ones, as expensive as without compression
  int cycle = 1;               // steps after which the costs repeat (local steps)
};

struct RunLength {
  int steps = 0;
  int period = 0;       // steps between validations; 0: none
  bool anneal = false;  // the learning rate comes down to 0 along half a cosine
};

struct Validation {
  int step = 0;
  double loss = 0;
  double accuracy = 0;
};

struct StepTimes {
  double step_ms = 0;      // mean over whole cycles, without the first ones
  double compute_ms = 0;   // ours: the same without what waited for communication; peer: 0
  double model_bytes = 0;  // ours: what a rank would exchange in fp32; peer: 0
};

class SlowLinkRuns {
 public:
  // Writes models, data and the order of samples into a folder of its own.
  explicit SlowLinkRuns(const std::vector<Workload>& workloads);

  // Validations of a run over shared memory (peer: loopback).
  std::vector<Validation> curve(const Workload& workload, const Method& method, const RunLength& length);

  // Makes the two hosts, or changes the link's speed (as tc writes it: "100mbit").
  void shape(const std::string& rate);
  StepTimes step_times(const Workload& workload, const Method& method, int cycles);

 private:
  std::filesystem::path write_experiment(const Workload& workload, const Method& method, const RunLength& length);
  void run_peer(const Workload& workload, const Method& method, const RunLength& length, bool on_link);

  ScratchFolder scratch_;
  TwoHosts hosts_{scratch_.path() / "hosts"};
  int port_ = 29500;
  int runs_ = 0;
};

}  // namespace dtrain::bench

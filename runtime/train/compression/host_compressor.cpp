#include "compression/host_compressor.h"

#include <utility>

#include "compression/compression_setup.h"
#include "dtrain/base/error.h"

namespace dtrain::train {

HostCompressor::HostCompressor(const FlatParameters& parameters, std::vector<at::Tensor> flats,
                               comm::Communicator& communicator, const CompressorOptions& options)
    : flats_(std::move(flats)),
      compressor_(compression_options(options), gradient_tensors(parameters, flats_), communicator),
      report_(options.name, options.key) {}

std::string_view HostCompressor::operation() const {
  return compressor_.options().codec.gathers && compressor_.compressing() ? "all_gather" : "all_reduce";
}

comm::Work HostCompressor::exchange(const comm::FusionPlan& plan, std::size_t bucket, double scale) {
  works_.push_back(compressor_.exchange(gradient_bucket(plan, bucket, flats_), scale));
  return works_.back();
}

void HostCompressor::end_step() {
  Nanoseconds exposed{0};
  for (const comm::Work& work : works_) exposed += work.timing().exposed;
  works_.clear();
  report_.add(compressor_.compressing(), exposed);
  compressor_.end_step();
}

void HostCompressor::undo_step_where(const at::Tensor& /*found_inf*/) {
  throw Error("a compressor of gradients on a CPU was asked to undo a step");
}

void HostCompressor::report(const RunServices& run) {
  report_.write(compressor_.statistics(), compressor_.options().codec.word, run);
}

void HostCompressor::visit(StateVisitor& visitor) {
  auto state = compressor_.save_state();
  for (auto& entry : state) visitor.reals(entry.name, entry.values);
  if (visitor.replaces()) compressor_.load_state(state);
}

}  // namespace dtrain::train

#include "compression/bucket_compressor.h"

#include <utility>

#include "compression/host_compressor.h"
#include "compression/tensor_compressor.h"

namespace dtrain::train {

std::unique_ptr<BucketCompressor> make_bucket_compressor(const FlatParameters& parameters,
                                                         std::vector<at::Tensor> flats,
                                                         comm::Communicator& communicator,
                                                         const CompressorOptions& options) {
  const bool on_host = flats.empty() || flats.front().is_cpu();
  if (on_host) return std::make_unique<HostCompressor>(parameters, std::move(flats), communicator, options);
  return std::make_unique<TensorCompressor>(parameters, std::move(flats), communicator, options);
}

}  // namespace dtrain::train

// Memory for collectives and error feedback, for all codecs.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "compression/codec.h"
#include "compression/kernels.h"
#include "dtrain/base/error.h"

namespace dtrain::comm {

Arena::Arena(Communicator& communicator, std::size_t bytes) {
  if (bytes > 0) buffer_ = communicator.allocate(bytes);
}

std::byte* Arena::claim_bytes(std::size_t bytes) {
  const std::size_t size = buffer_ ? buffer_->bytes().size() : 0;
  if (used_ + rounded(bytes) > size) {
    throw CommError("gradient compression: " + std::to_string(bytes) + " bytes do not fit into what is left of " +
                        std::to_string(size),
                    "exchange each gradient once a step, and finish a step before the next");
  }
  std::byte* const place = buffer_->bytes().data() + used_;
  used_ += rounded(bytes);
  return place;
}

std::vector<bool> float32_tensors(std::span<const GradientTensor> tensors) {
  std::vector<bool> result;
  for (const GradientTensor& tensor : tensors) result.push_back(tensor.type == DataType::kFloat32);
  return result;
}

Residuals::Residuals(std::span<const GradientTensor> tensors, const std::vector<bool>& keep)
    : tensors_(tensors), places_(tensors.size(), nullptr) {
  const auto padded = [](std::size_t elements) { return Arena::rounded(elements * sizeof(float)) / sizeof(float); };
  std::size_t total = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) total += keep[i] ? padded(tensors[i].elements) : 0;
  memory_.reset(static_cast<float*>(std::calloc(std::max<std::size_t>(total, 1), sizeof(float))));
  if (!memory_) throw std::bad_alloc();
  std::size_t used = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!keep[i]) continue;
    places_[i] = memory_.get() + used;
    used += padded(tensors[i].elements);
  }
}

void Residuals::give_back(std::size_t tensor) {
  if (!places_[tensor]) return;
  const GradientTensor& given = tensors_[tensor];
  kernels::add_scaled(static_cast<const float*>(given.data), places_[tensor], given.elements, 1);
  std::memset(given.data, 0, given.elements * sizeof(float));
}

std::vector<std::pair<std::string, std::span<float>>> Residuals::places() {
  std::vector<std::pair<std::string, std::span<float>>> result;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i]) result.emplace_back("error/" + tensors_[i].name, std::span(places_[i], tensors_[i].elements));
  }
  return result;
}

}  // namespace dtrain::comm

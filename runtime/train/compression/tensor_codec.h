// What a codec of tensor operations implements: the codecs of comm/compression for gradients on any device.
//
// A codec launches operations on the current stream and waits for nothing. Its arithmetic is that of
// comm/compression/kernels.h, operation by operation; where a device cannot give the same bits, the codec's file says
// so. Called by one thread at a time, without gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "dtrain/comm/codecs.h"
#include "dtrain/comm/communicator.h"

namespace dtrain::train {

// A parameter's place in the flat memory of its group.
struct TensorPlace {
  std::string name;
  std::size_t group = 0;
  std::int64_t begin = 0;
  std::int64_t elements = 0;
  std::int64_t rows = 0, columns = 0;  // as a matrix (comm::GradientTensor)
};

// Neighbouring places of a group of float32, with the padding (zeros) between them.
struct TensorBucket {
  std::vector<std::size_t> tensors;  // numbers of places, as they lie in memory
  std::size_t group = 0;
  std::int64_t begin = 0;  // in the group
  at::Tensor values;       // what is exchanged
  int number = -1;
};

struct TensorCodecContext {
  std::vector<at::Tensor> flats;  // of each group
  std::vector<TensorPlace> places;
  comm::Communicator& communicator;
  std::uint64_t seed = 0;
  at::Tensor saturated, underflowed;  // int64 each, as comm::CompressionStatistics has them; on the device

  std::int64_t world() const { return communicator.world_size(); }
  std::int64_t rank() const { return communicator.rank(); }
  bool holds_float32(std::size_t group) const { return flats[group].scalar_type() == at::kFloat; }
  // A tensor like a group's flat memory, of zeros; undefined where the group is not float32.
  std::vector<at::Tensor> like_flats() const;
  // Of each place its part of such tensors; undefined where they are.
  std::vector<at::Tensor> parts_of(const std::vector<at::Tensor>& like) const;
};

// One bucket on its way.
class TensorExchange {
 public:
  virtual ~TensorExchange() = default;
  // What the operation before made possible, then the next operation; the one before has been joined. An empty Work:
  // the bucket is done.
  virtual comm::Work next() = 0;
};

// The exchange of a codec whose codes are gathered: encode() makes them, of all ranks in a row each; gather() collects
// them; decode() makes the bucket's values of them.
template <class Codec>
class GatheredExchange final : public TensorExchange {
 public:
  GatheredExchange(Codec& codec, TensorBucket bucket, double scale)
      : codec_(codec), bucket_(std::move(bucket)), scale_(scale) {}
  comm::Work next() override {
    if (gathered_.defined()) {
      codec_.decode(bucket_, gathered_);
      return {};
    }
    gathered_ = codec_.encode(bucket_, scale_);
    return codec_.gather(gathered_, bucket_.number);
  }

 private:
  Codec& codec_;
  const TensorBucket bucket_;
  const double scale_;
  at::Tensor gathered_;
};

class TensorCodec {
 public:
  virtual ~TensorCodec() = default;
  // Null: nothing in this bucket is worth compressing.
  virtual std::unique_ptr<TensorExchange> begin(TensorBucket bucket, double scale) = 0;
  virtual void not_applied(std::size_t /*place*/) {}
  // What is training state: vectors of float32, under the names that comm's codecs have for them.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() { return {}; }
  // The memory of the state, in as few tensors as it takes.
  virtual std::vector<at::Tensor> state_memory();
};

// The error feedback of all places: `parts` hold it.
std::vector<std::pair<std::string, at::Tensor>> error_feedback(const TensorCodecContext& context,
                                                               const std::vector<at::Tensor>& parts);
// Those that are there: a group that is not float32 has none.
std::vector<at::Tensor> defined_of(const std::vector<at::Tensor>& tensors);
// The place's last result goes back into its error feedback.
void give_back(const TensorCodecContext& context, std::size_t place, const std::vector<at::Tensor>& parts);

// The list of the forms for GPUs: one for each codec of dtrain/comm/codecs.h that has one, at the end of its file in
// codecs/. A codec without a form is refused on GPUs.
std::unique_ptr<TensorCodec> make_tensor_form(TensorCodecContext& context, const comm::Fp16& settings);
std::unique_ptr<TensorCodec> make_tensor_form(TensorCodecContext& context, const comm::Bf16& settings);
std::unique_ptr<TensorCodec> make_tensor_form(TensorCodecContext& context, const comm::Int8& settings);
std::unique_ptr<TensorCodec> make_tensor_form(TensorCodecContext& context, const comm::TopK& settings);

// Null: no compression. CommError for settings that make no sense; ConfigError for a codec without a form for GPUs.
std::unique_ptr<TensorCodec> make_tensor_codec(TensorCodecContext& context, const comm::Compression& compression);

}  // namespace dtrain::train

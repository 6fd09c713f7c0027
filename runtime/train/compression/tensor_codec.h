// The interface of a codec in tensor operations: the codecs of comm/compression for gradients on any device.
//
// A codec launches operations on the current stream and waits for nothing. Its arithmetic is that of
// comm/compression/kernels.h, operation by operation; the codec's file documents where a device gives other bits.
// Called by one thread at a time, without gradients.
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
  std::int64_t rows = 0, columns = 0;  // of the matrix (comm::GradientTensor)
};

// Adjacent places of a float32 group, including the padding (zeros) between them.
struct TensorBucket {
  std::vector<std::size_t> tensors;  // indices of places, in the order of memory
  std::size_t group = 0;
  std::int64_t begin = 0;  // in the group
  at::Tensor values;       // the exchanged values
  int number = -1;
};

struct TensorCodecContext {
  std::vector<at::Tensor> flats;  // of each group
  std::vector<TensorPlace> places;
  comm::Communicator& communicator;
  std::uint64_t seed = 0;
  at::Tensor saturated, underflowed;  // int64 each, the counts of comm::CompressionStatistics; on the device

  std::int64_t world() const { return communicator.world_size(); }
  std::int64_t rank() const { return communicator.rank(); }
  bool holds_float32(std::size_t group) const { return flats[group].scalar_type() == at::kFloat; }
  // Returns zeros of the size of each group's flat memory; undefined for a group that is not float32.
  std::vector<at::Tensor> like_flats() const;
  // Returns each place's part of such tensors; undefined if its group's tensor is.
  std::vector<at::Tensor> parts_of(const std::vector<at::Tensor>& like) const;
  // Gathers the bytes of a tensor with a row for each rank, of which this rank has filled its own.
  comm::Work gather(const at::Tensor& rows, int bucket) const;
};

// The exchange of one bucket.
class TensorExchange {
 public:
  virtual ~TensorExchange() = default;
  // Processes the result of the last operation, which has been joined, and starts the next. An empty Work: the bucket
  // is done.
  virtual comm::Work next() = 0;
};

// The exchange of a codec with one operation: encode() makes the codes of this rank, exchange() gathers those of all
// ranks or sums them up, and decode() makes the bucket's values of the result.
template <class Codec>
class SingleExchange final : public TensorExchange {
 public:
  SingleExchange(Codec& codec, TensorBucket bucket, double scale)
      : codec_(codec), bucket_(std::move(bucket)), scale_(scale) {}
  comm::Work next() override {
    if (codes_.defined()) {
      codec_.decode(bucket_, codes_);
      return {};
    }
    codes_ = codec_.encode(bucket_, scale_);
    return codec_.exchange(codes_, bucket_.number);
  }

 private:
  Codec& codec_;
  const TensorBucket bucket_;
  const double scale_;
  at::Tensor codes_;
};

class TensorCodec {
 public:
  virtual ~TensorCodec() = default;
  // Begins the exchange of a bucket; null: compressing it is not worth while.
  virtual std::unique_ptr<TensorExchange> begin(TensorBucket bucket, double scale) = 0;
  virtual void not_applied(std::size_t /*place*/) {}
  // Returns the training state: float32 vectors under the names of comm's codecs.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() { return {}; }
  // Returns the memory of the state, in as few tensors as possible.
  virtual std::vector<at::Tensor> state_memory();
};

// Returns the error feedback of all places by name; `parts` hold it.
std::vector<std::pair<std::string, at::Tensor>> error_feedback(const TensorCodecContext& context,
                                                               const std::vector<at::Tensor>& parts);
// Returns the defined tensors: a group that is not float32 has none.
std::vector<at::Tensor> defined_of(const std::vector<at::Tensor>& tensors);
// Puts the place's last result back into its error feedback.
void give_back(const TensorCodecContext& context, std::size_t place, const std::vector<at::Tensor>& parts);

// The forms for GPUs. Each codec of dtrain/comm/codecs.h with such a form defines it at the end of its file in codecs/.
// A codec without one is refused on GPUs.
std::unique_ptr<TensorCodec> make_tensor_form(TensorCodecContext& context, const comm::Fp16& settings);
std::unique_ptr<TensorCodec> make_tensor_form(TensorCodecContext& context, const comm::Bf16& settings);
std::unique_ptr<TensorCodec> make_tensor_form(TensorCodecContext& context, const comm::Int8& settings);
std::unique_ptr<TensorCodec> make_tensor_form(TensorCodecContext& context, const comm::PowerSgd& settings);
std::unique_ptr<TensorCodec> make_tensor_form(TensorCodecContext& context, const comm::TopK& settings);

// Null: no compression. CommError for settings that make no sense; ConfigError for a codec without a form for GPUs.
std::unique_ptr<TensorCodec> make_tensor_codec(TensorCodecContext& context, const comm::Compression& compression);

}  // namespace dtrain::train

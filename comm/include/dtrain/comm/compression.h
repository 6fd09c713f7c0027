// Exchanges gradients in fewer bytes.
//
// A GradientCompressor takes the place of all_reduce: exchange() takes one bucket of the flat gradient buffer and
// replaces it by the approximate mean over ranks, the same bits on every rank. A lossy codec adds the error of one
// exchange to the next (error feedback, Karimireddy et al., arXiv:1901.09847). Error feedback is kept for each
// gradient, so the division into buckets may change at any time without changing the bits. fp16 has error feedback for
// values that are too small for float16; bf16 has none. Only float32 is compressed. Buckets of float64 are exchanged
// uncompressed, and so are all buckets of a single rank.
//
// A NaN or Inf on one rank reaches all ranks. With int8 it makes its whole block NaN, with powersgd its whole matrix.
// Error feedback does not keep it.
//
// Owned and called by the training thread; the communicator must outlive it. Like all operations of a communicator,
// exchanges must be issued in the same order on all ranks. If an exchange has several operations, wait() issues the
// later ones. test() never does, because ranks call it at different moments. So all ranks must call wait() at the same
// place in that order. wait() finishes every exchange that has begun.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/codecs.h"
#include "dtrain/comm/communicator.h"

namespace dtrain::comm {

// The properties of a codec that a GradientCompressor needs. The codec is a struct of the list or another struct of the
// same form.
struct CodecMaker {
  const char* word = "";  // names the codec in an experiment; empty: none
  bool gathers = false;
  std::int64_t warmup_steps = 0;
  std::function<std::unique_ptr<Codec>(CodecContext&)> make;  // empty, or returns null: no compression
};
CodecMaker codec_maker(const Compression& compression);
// Accepts a struct that is not in the list. The caller includes comm/compression/codec.h.
template <class Settings>
CodecMaker codec_maker(const Settings& settings) {
  return {Settings::kWord, Settings::kGathers, warmup_steps_of(settings),
          [settings](CodecContext& context) { return settings.make_codec(context); }};
}

struct CompressionOptions {
  CodecMaker codec;
  std::uint64_t seed = 0;  // of the random numbers that codecs draw (powersgd: the first Q)
  // Number of steps exchanged without compression, for comparison: step `first_compared` (counted from 0) and every
  // second one after it.
  int compared_steps = 0;
  std::int64_t first_compared = 2;
};

// One gradient. As a matrix it has `rows` (its first dimension) x `columns` (the product of the others).
struct GradientTensor {
  std::string name;
  void* data = nullptr;  // its place in the flat buffer
  std::size_t elements = 0;
  std::size_t rows = 0, columns = 0;
  DataType type = DataType::kFloat32;
};

// The ranks among which a compressor exchanges gradients, as it sees them. The functions are those of a Communicator.
class CompressionPeers {
 public:
  virtual ~CompressionPeers() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes) = 0;
  virtual Work all_reduce(void* data, std::size_t count, DataType type, const ReduceOptions& options) = 0;
  // `in` is this rank's place in `out`.
  virtual Work all_gather(const void* in, void* out, std::size_t count, DataType type, int bucket) = 0;
};

// Neighbouring gradients of one type that are exchanged together, with the padding (zeros) between them.
struct GradientBucket {
  std::span<const std::size_t> tensors;  // indices into the list the compressor was made from
  void* data = nullptr;
  std::size_t count = 0;  // elements, padding included
  DataType type = DataType::kFloat32;
  int number = -1;
};

struct CompressionStatistics {
  std::int64_t steps = 0, compressed_steps = 0;
  // Bytes that this rank has sent in compressed steps, and would have sent without compression. An all_reduce counts as
  // 2(n-1)/n of its bytes, an all_gather as (n-1)/n of the gathered bytes.
  double sent_bytes = 0, uncompressed_bytes = 0;
  Nanoseconds coding{0};         // encoding and decoding
  double plain_bytes = 0;        // the part of sent_bytes in buckets that cannot be compressed (float64)
  std::int64_t saturated = 0;    // finite values too large for float16 or bfloat16, replaced by the largest that fits
  std::int64_t underflowed = 0;  // values that float16 rounds to zero; the error feedback keeps them
};

// Part of the training state: error feedback, powersgd's Q, the number of steps.
struct CompressionState {
  std::string name;  // "error/fc1.weight", "q/fc1.weight", "steps"
  std::vector<float> values;
};

class GradientCompressor {
 public:
  // Collective (it allocates). CommError if an option is invalid.
  GradientCompressor(const CompressionOptions& options, std::vector<GradientTensor> tensors,
                     Communicator& communicator);
  // The same with other peers, which outlive the compressor.
  GradientCompressor(const CompressionOptions& options, std::vector<GradientTensor> tensors, CompressionPeers& peers);
  ~GradientCompressor();
  GradientCompressor& operator=(GradientCompressor&&) = delete;

  // Begins an exchange: the bucket then holds `scale` times the sum over ranks. `scale` is usually 1/(ranks x batches).
  // It is applied before anything is narrowed. The bucket must not change until the Work is complete.
  Work exchange(const GradientBucket& bucket, double scale);
  // For compressors that one thread runs, and which exchange with each other: takes every exchange one stage further,
  // as Work::wait() takes them to the end. False: all are complete. To be called on each of them in the order of their
  // ranks, until all return false. `writes`: false if another one writes the same results into the same buckets.
  bool advance(bool writes);
  // Counts a step, once all its exchanges are complete.
  void end_step();
  // True if exchange() compresses in this step.
  bool compressing() const;
  // To be called if the last result for this gradient is not applied: adds the result to the error feedback, and sets
  // the gradient to zero.
  void not_applied(std::size_t tensor);

  std::vector<CompressionState> save_state() const;
  // Restores the state. CommError names an entry that is missing, unknown or of another size.
  void load_state(std::span<const CompressionState> state);

  const CompressionStatistics& statistics() const;
  const CompressionOptions& options() const;

 private:
  GradientCompressor(const CompressionOptions& options, std::vector<GradientTensor> tensors,
                     std::unique_ptr<CompressionPeers> peers);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrain::comm

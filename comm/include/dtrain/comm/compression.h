// Exchanging gradients in fewer bytes than they have.
//
// A GradientCompressor takes the place of all_reduce: exchange() takes one bucket of the flat gradient buffer and
// replaces it by the approximate mean over ranks, the same bits on every rank. A lossy codec adds to the next exchange
// what it has left out of this one (error feedback, Karimireddy et al., arXiv:1901.09847). Error feedback is kept for
// each gradient, so the division into buckets may change at any time without changing the bits. fp16 has error feedback
// for values that are too small for float16; bf16 has none. Only float32 is compressed. Buckets of float64 are
// exchanged uncompressed, and so are all buckets of a single rank.
//
// A NaN or Inf on one rank reaches all ranks. With int8 it makes its whole block NaN, with powersgd its whole matrix.
// Error feedback does not keep it.
//
// Owned and called by the training thread; the communicator must outlive it. Like all operations of a communicator,
// exchanges must be issued in the same order on all ranks. An exchange of several operations issues the later ones only
// in wait(), never in test(), which ranks call at different moments. So all ranks must call wait() at the same place in
// that order; it finishes every exchange begun so far.
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

// What a GradientCompressor needs to know of a codec: one of the list, or any other struct of that form.
struct CodecMaker {
  const char* word = "";  // by which an experiment names the codec; empty: none
  bool gathers = false;
  std::int64_t warmup_steps = 0;
  std::function<std::unique_ptr<Codec>(CodecContext&)> make;  // empty, or returns null: no compression
};
CodecMaker codec_maker(const Compression& compression);
// For a struct that is not in the list. The caller includes comm/compression/codec.h.
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

// One gradient. A codec that needs a matrix takes it as its first dimension x the rest.
struct GradientTensor {
  std::string name;
  void* data = nullptr;  // its place in the flat buffer
  std::size_t elements = 0;
  std::size_t rows = 0, columns = 0;
  DataType type = DataType::kFloat32;
};

// What is exchanged together: neighbouring gradients of one type, with the padding (zeros) between them.
struct GradientBucket {
  std::span<const std::size_t> tensors;  // indices into the list the compressor was made from
  void* data = nullptr;
  std::size_t count = 0;  // elements, padding included
  DataType type = DataType::kFloat32;
  int number = -1;
};

struct CompressionStatistics {
  std::int64_t steps = 0, compressed_steps = 0;
  // What this rank has sent in compressed steps, and what it would have sent without compression. An all_reduce counts
  // as 2(n-1)/n of its bytes, an all_gather as (n-1)/n of what it gathers.
  double sent_bytes = 0, uncompressed_bytes = 0;
  Nanoseconds coding{0};         // encoding and decoding
  Nanoseconds communicating{0};  // exchanges in flight, from the first issued to the last complete, compressed steps
  double plain_bytes = 0;        // of sent_bytes, those of buckets that cannot be compressed (float64)
  std::int64_t saturated = 0;    // finite values that float16 or bfloat16 could not hold and that were cut
  std::int64_t underflowed = 0;  // values that float16 rounds to zero: the error feedback keeps them
};

// Part of the training state: error feedback, powersgd's Q, the number of steps.
struct CompressionState {
  std::string name;  // "error/fc1.weight", "q/fc1.weight", "steps"
  std::vector<float> values;
};

class GradientCompressor {
 public:
  // Collective (it allocates). CommError for options that make no sense.
  GradientCompressor(const CompressionOptions& options, std::vector<GradientTensor> tensors,
                     Communicator& communicator);
  ~GradientCompressor();
  GradientCompressor(const GradientCompressor&) = delete;
  GradientCompressor& operator=(const GradientCompressor&) = delete;

  // Begins an exchange: the bucket then holds `scale` times the sum over ranks. `scale` is usually 1/(ranks x batches).
  // It is applied before anything is narrowed. The bucket must not change until the Work is complete.
  Work exchange(const GradientBucket& bucket, double scale);
  // Counts a step, once all its exchanges are complete.
  void end_step();
  // Whether exchange() compresses in this step.
  bool compressing() const;
  // Puts the last result for this gradient, which is not used, back into the error feedback. The bucket then holds
  // zeros.
  void not_applied(std::size_t tensor);

  std::vector<CompressionState> save_state() const;
  // CommError names what is missing, unknown or of another size.
  void load_state(std::span<const CompressionState> state);

  const CompressionStatistics& statistics() const;
  const CompressionOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrain::comm

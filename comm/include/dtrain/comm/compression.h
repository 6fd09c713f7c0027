// Exchanging gradients in fewer bytes than they have.
//
// A GradientCompressor takes the place of all_reduce: exchange() takes one bucket of the flat gradient buffer and
// replaces it by the approximate mean over ranks, the same bits on every rank. What a lossy codec leaves out of one
// exchange it adds to the next (error feedback, Karimireddy et al., arXiv:1901.09847). Error feedback is kept per
// gradient, so buckets may be cut anew at any time and every cut gives the same bits. fp16 has it for values that are
// too small for float16, bf16 has none. Only float32 is compressed; float64 buckets, and everything where there is one
// rank, travel uncompressed.
//
// Gradients that are not finite stay so: a NaN or Inf on one rank reaches all of them (as NaN with int8 and powersgd,
// for a block or a matrix), and leaves no trace in the error feedback.
//
// Owned and called by the training thread; the communicator must outlive it. As everything on a communicator, exchanges
// must come in the same order on all ranks. An exchange of several operations issues the later ones in wait()
// alone, never in test(), whose moment differs from rank to rank; so wait() must be called at the same place of that
// order on all ranks, and finishes every exchange begun so far.
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

// One of the list, or any other struct of that form, by what a GradientCompressor needs of it.
struct CodecMaker {
  const char* word = "";  // by which an experiment names the codec; empty: none
  bool gathers = false;
  std::int64_t warmup_steps = 0;
  std::function<std::unique_ptr<Codec>(CodecContext&)> make;  // empty, or returns null: no compression
};
CodecMaker codec_maker(const Compression& compression);
// For a struct that is in no list. Its caller includes comm/compression/codec.h.
template <class Settings>
CodecMaker codec_maker(const Settings& settings) {
  return {Settings::kWord, Settings::kGathers, warmup_steps_of(settings),
          [settings](CodecContext& context) { return settings.make_codec(context); }};
}

struct CompressionOptions {
  CodecMaker codec;
  std::uint64_t seed = 0;  // of what codecs draw at random (powersgd: the first Q)
  // Number of steps exchanged without compression, for comparison: step `first_compared` (counted from 0) and every
  // second one after it.
  int compared_steps = 0;
  std::int64_t first_compared = 2;
};

// One gradient, and the matrix it is to a codec that wants one: its first dimension x the rest.
struct GradientTensor {
  std::string name;
  void* data = nullptr;  // its place in the flat buffer
  std::size_t elements = 0;
  std::size_t rows = 0, columns = 0;
  DataType type = DataType::kFloat32;
};

// What travels together: neighbouring gradients of one type, with the padding (zeros) between them.
struct GradientBucket {
  std::span<const std::size_t> tensors;  // indices into the list the compressor was made from
  void* data = nullptr;
  std::size_t count = 0;  // elements, padding included
  DataType type = DataType::kFloat32;
  int number = -1;
};

struct CompressionStatistics {
  std::int64_t steps = 0, compressed_steps = 0;
  // What this rank has sent in compressed steps, and would have sent without (counting 2(n-1)/n of an all_reduce's
  // bytes and (n-1)/n of what an all_gather gathers).
  double sent_bytes = 0, uncompressed_bytes = 0;
  Nanoseconds coding{0};         // encoding and decoding
  Nanoseconds communicating{0};  // exchanges in flight, from the first issued to the last complete, compressed steps
  double plain_bytes = 0;        // of sent_bytes, those of buckets that cannot be compressed (float64)
  std::int64_t saturated = 0;    // finite values that float16 or bfloat16 could not hold and that were cut
  std::int64_t underflowed = 0;  // values so small that float16 has zero for them: they waited in the error feedback
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

  // Begins an exchange: the bucket then holds `scale` times the sum over ranks. `scale` is 1/(ranks x batches) as a
  // rule, and is applied before anything is narrowed. The bucket must not change until the Work is complete.
  Work exchange(const GradientBucket& bucket, double scale);
  // The step is over (all its exchanges are complete): counts it.
  void end_step();
  // Whether exchange() compresses in this step.
  bool compressing() const;
  // The last result for this gradient is not used: it goes back into the error feedback, and the bucket holds zeros.
  void not_applied(std::size_t tensor);

  std::vector<CompressionState> save_state() const;
  // CommError names what is missing, left over or of another size.
  void load_state(std::span<const CompressionState> state);

  const CompressionStatistics& statistics() const;
  const CompressionOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrain::comm

// The interface of codecs, and helpers that all codecs share. Internal to the compressor; used by its thread alone.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtrain/comm/compression.h"

namespace dtrain::comm {

// Memory that collectives may use in place, handed out from the front, and anew in every step. Every rank claims the
// same pieces, so they lie at the same places on all ranks.
class CodecMemory {
 public:
  CodecMemory(CompressionPeers& peers, std::size_t bytes);
  template <class T>
  T* claim(std::size_t count) {
    return reinterpret_cast<T*>(claim_bytes(count * sizeof(T)));
  }
  void reset() { used_ = 0; }
  // Returns the bytes that claim() takes for this many bytes.
  static constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  std::byte* claim_bytes(std::size_t bytes);

  std::unique_ptr<Buffer> buffer_;
  std::size_t used_ = 0;
};

// Error feedback of the compressed tensors: the values that earlier exchanges left out, in the units of the exchanged
// gradients. Pages that were never written take no memory.
class Residuals {
 public:
  // `keep[i]`: gradient i has error feedback.
  Residuals(std::span<const GradientTensor> tensors, const std::vector<bool>& keep);
  float* of(std::size_t tensor) { return places_[tensor]; }  // null: none
  void give_back(std::size_t tensor);                        // takes the gradient buffer's values
  std::vector<std::pair<std::string, std::span<float>>> places();

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::span<const GradientTensor> tensors_;
  std::unique_ptr<float[], Free> memory_;
  std::vector<float*> places_;
};

// Returns for each gradient whether it can be compressed (float32).
std::vector<bool> float32_tensors(std::span<const GradientTensor> tensors);

struct CodecContext {
  std::vector<GradientTensor> tensors;
  CompressionPeers& peers;
  CompressionOptions options;
  CompressionStatistics statistics;
  std::unique_ptr<CodecMemory> memory;

  std::size_t world() const { return static_cast<std::size_t>(peers.world_size()); }
};

// The exchange of one bucket, stage by stage.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Does the local work that is now possible, then issues the next operation. An empty Work: the bucket is done.
  virtual Work next() = 0;
  // True if next() will issue no operation; next() may then run at any moment.
  virtual bool only_local() const = 0;
  // True if next() will only write the result into the bucket.
  virtual bool only_writes() const { return only_local(); }
};

class Codec {
 public:
  virtual ~Codec() = default;
  // Bytes of CodecMemory for all tensors at once.
  virtual std::size_t staging_bytes() const = 0;
  // Begins the exchange of a bucket. Null: no gradient in it is worth compressing.
  virtual std::unique_ptr<Exchange> begin(const GradientBucket& bucket, double scale) = 0;
  virtual void not_applied(std::size_t /*tensor*/) {}
  // Returns the named memory that is training state.
  virtual std::vector<std::pair<std::string, std::span<float>>> state() { return {}; }
  // Tells the codec that the caller has written to that memory.
  virtual void state_changed() {}
};

}  // namespace dtrain::comm

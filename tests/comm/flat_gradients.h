// A flat gradient buffer of a model, laid out and cut into buckets as training does it, for the tests of compressors.
// One rank's thread.
#pragma once

#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dtrain/comm/communicator.h"
#include "dtrain/comm/compression.h"

namespace dtrain::test {

struct Shape {
  std::size_t rows, columns;
};

class Model {
 public:
  // Gradients are divided by ranks x `batches`.
  Model(comm::Communicator& comm, const std::vector<Shape>& shapes, int batches = 1) : comm_(comm), batches_(batches) {
    std::size_t used = 0;
    for (const Shape& s : shapes) used += padded(s);
    buffer_ = comm.allocate(used * sizeof(float));
    used = 0;
    for (const Shape& s : shapes) {
      tensors.push_back({"t" + std::to_string(tensors.size()), data() + used, s.rows * s.columns, s.rows, s.columns});
      used += padded(s);
    }
  }
  float* data() { return reinterpret_cast<float*>(buffer_->bytes().data()); }
  std::size_t count() { return buffer_->bytes().size() / sizeof(float); }
  std::span<float> of(std::size_t t) { return {static_cast<float*>(tensors[t].data), tensors[t].elements}; }

  // Cuts the gradients into `buckets` and exchanges all of them at once.
  void exchange(comm::GradientCompressor& compressor, std::size_t buckets = 1, bool poll = false) {
    std::vector<std::vector<std::size_t>> cut(buckets);
    for (std::size_t t = 0; t < tensors.size(); ++t) cut[t * buckets / tensors.size()].push_back(t);
    std::vector<comm::Work> works;
    for (std::size_t b = 0; b < buckets; ++b) {
      if (cut[b].empty()) continue;
      auto* const first = static_cast<float*>(tensors[cut[b].front()].data);
      const auto& last = tensors[cut[b].back()];
      const auto n =
          static_cast<std::size_t>(static_cast<float*>(last.data) - first) + padded({last.rows, last.columns});
      works.push_back(compressor.exchange({cut[b], first, n, comm::DataType::kFloat32, static_cast<int>(b)}, scale()));
      if (poll) static_cast<void>(works.front().test());
      comm_.progress();
    }
    for (auto w = works.rbegin(); w != works.rend(); ++w) w->wait();  // in any order
    for (comm::Work& w : works) EXPECT_TRUE(w.test());
    compressor.end_step();
  }
  double scale() const { return 1.0 / (comm_.world_size() * batches_); }

  std::vector<comm::GradientTensor> tensors;

 private:
  static std::size_t padded(const Shape& s) { return (s.rows * s.columns + 15) / 16 * 16; }
  comm::Communicator& comm_;
  int batches_;
  std::unique_ptr<comm::Buffer> buffer_;
};

inline const std::vector<Shape> kShapes = {{40, 30}, {30, 1}, {1, 1}, {7, 300}, {513, 3}, {64, 64}, {33, 1}};

// Normal random numbers that depend on the rank and on `salt`.
inline void fill(Model& model, int rank, int salt) {
  std::mt19937 random(static_cast<unsigned>(1000 * salt + rank));
  std::normal_distribution<float> normal;
  for (std::size_t t = 0; t < model.tensors.size(); ++t) {
    for (float& v : model.of(t)) v = normal(random);
  }
}

// All gradients one after the other, without padding.
inline std::vector<float> values(Model& model) {
  std::vector<float> all;
  for (std::size_t t = 0; t < model.tensors.size(); ++t) {
    const auto part = model.of(t);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace dtrain::test

#include "harness/misuse.h"

namespace dtrain::test {

using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;
using comm::Work;

std::string MisuseCase::text(std::uint64_t sequence, int world_size) const {
  return "the ranks entered different operations as their operation " + std::to_string(sequence) + ": rank 0 " +
         most_text + ", rank " + std::to_string(world_size - 1) + " " + last_text;
}

std::vector<MisuseCase> misuse_cases() {
  const auto reduce = [](std::size_t count, DataType type, const comm::ReduceOptions& options = {}) {
    return [=](Communicator& c, float* d) { return c.all_reduce(d, count, type, options); };
  };
  const auto sum = reduce(5000, DataType::kFloat32);
  const std::string sum_text = "all_reduce(sum, float32, 5000 elements)";
  return {
      {"Operation", sum, [](Communicator& c, float*) { return c.barrier(); }, sum_text, "barrier"},
      {"Kind", sum, [](Communicator& c, float* d) { return c.broadcast(d, 5000, DataType::kFloat32, 0); }, sum_text,
       "broadcast(float32, 5000 elements from rank 0)"},
      {"Parts", sum, [](Communicator& c, float* d) { return c.reduce_parts(d, 5000, DataType::kFloat32); }, sum_text,
       "reduce_parts(sum, float32, 5000 elements)"},
      {"Scatter", [](Communicator& c, float* d) { return c.reduce_scatter(d, d, 1000, DataType::kFloat32); },
       [](Communicator& c, float* d) { return c.all_gather(d, d, 1000, DataType::kFloat32); },
       "reduce_scatter(sum, float32, 1000 elements a rank)", "all_gather(float32, 1000 elements a rank)"},
      {"Size", sum, reduce(4999, DataType::kFloat32), sum_text, "all_reduce(sum, float32, 4999 elements)"},
      {"SmallSize", reduce(2, DataType::kFloat32), reduce(3, DataType::kFloat32),
       "all_reduce(sum, float32, 2 elements)", "all_reduce(sum, float32, 3 elements)"},
      {"SmallAndLarge", sum, reduce(1, DataType::kFloat32), sum_text, "all_reduce(sum, float32, 1 elements)"},
      {"Nothing", sum, reduce(0, DataType::kFloat32), sum_text, "all_reduce(sum, float32, 0 elements)"},
      {"Type", sum, reduce(5000, DataType::kInt32), sum_text, "all_reduce(sum, int32, 5000 elements)"},
      {"NarrowType", reduce(5000, DataType::kFloat16), reduce(5000, DataType::kBfloat16),
       "all_reduce(sum, float16, 5000 elements)", "all_reduce(sum, bfloat16, 5000 elements)"},
      {"Reduction", sum, reduce(5000, DataType::kFloat32, {.op = ReduceOp::kMean}), sum_text,
       "all_reduce(mean, float32, 5000 elements)"},
      {"Scale", sum, reduce(5000, DataType::kFloat32, {.post_scale = 0.5}), sum_text,
       "all_reduce(sum, float32, 5000 elements, scaled by 0.5)"},
      {"ScaleOfInputs", sum, reduce(5000, DataType::kFloat32, {.pre_scale = 0.25}), sum_text,
       "all_reduce(sum, float32, 5000 elements, inputs scaled by 0.25)"},
      {"Bucket", reduce(5000, DataType::kFloat32, {.bucket = 3}), reduce(5000, DataType::kFloat32, {.bucket = 4}),
       "all_reduce(sum, float32, 5000 elements, bucket 3)", "all_reduce(sum, float32, 5000 elements, bucket 4)"},
      {"Root", [](Communicator& c, float* d) { return c.broadcast(d, 10, DataType::kFloat32, 0); },
       [](Communicator& c, float* d) { return c.broadcast(d, 10, DataType::kFloat32, 1); },
       "broadcast(float32, 10 elements from rank 0)", "broadcast(float32, 10 elements from rank 1)"},
      {"RootOfReduce", [](Communicator& c, float* d) { return c.reduce(d, d, 2000, DataType::kFloat32, 0); },
       [](Communicator& c, float* d) { return c.reduce(d, d, 2000, DataType::kFloat32, 1); },
       "reduce(sum, float32, 2000 elements to rank 0)", "reduce(sum, float32, 2000 elements to rank 1)"},
      {"KindOfReduce", [](Communicator& c, float* d) { return c.all_reduce(d, 2000, DataType::kInt32); },
       [](Communicator& c, float* d) { return c.reduce(d, d, 2000, DataType::kInt32, 1); },
       "all_reduce(sum, int32, 2000 elements)", "reduce(sum, int32, 2000 elements to rank 1)"},
      {"Bits", reduce(5000, DataType::kInt8, {.op = ReduceOp::kBitAnd}),
       reduce(5000, DataType::kInt8, {.op = ReduceOp::kBitXor}), "all_reduce(bit_and, int8, 5000 elements)",
       "all_reduce(bit_xor, int8, 5000 elements)"},
      {"NewTypes", reduce(5000, DataType::kInt16), reduce(5000, DataType::kBool),
       "all_reduce(sum, int16, 5000 elements)", "all_reduce(sum, bool, 5000 elements)"},
      {"Order",
       [](Communicator& c, float* d) {
         (void)c.all_reduce(d, 5000, DataType::kFloat32, {.bucket = 0});
         return c.all_reduce(d + 5000, 5000, DataType::kFloat32, {.bucket = 1});
       },
       [](Communicator& c, float* d) {
         (void)c.all_reduce(d + 5000, 5000, DataType::kFloat32, {.bucket = 1});
         return c.all_reduce(d, 5000, DataType::kFloat32, {.bucket = 0});
       },
       "all_reduce(sum, float32, 5000 elements, bucket 0)", "all_reduce(sum, float32, 5000 elements, bucket 1)"},
      {"Group",
       [](Communicator& c, float* d) {
         comm::Group group(c);
         (void)c.barrier();
         return c.all_reduce(d, 5000, DataType::kFloat32);
       },
       [](Communicator& c, float* d) {
         comm::Group group(c);
         (void)c.all_reduce(d, 5000, DataType::kFloat32);
         return c.barrier();
       },
       "barrier", "all_reduce(sum, float32, 5000 elements)"},
  };
}

}  // namespace dtrain::test

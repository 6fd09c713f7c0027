// Which parameters autocast always casts: those that only matrix products and convolutions take. The model may compute
// with their shadow at once, to the same bits, and casts none of them again. Training thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include <ATen/record_function.h>

#include "model/flat_parameters.h"

namespace dtrain::train {

class NarrowUse {
 public:
  // `parameters` outlives it.
  explicit NarrowUse(const FlatParameters& parameters);

  // Watches the operators that the calling thread calls during its life, under Autocast. One at a time in a thread.
  class Watching {
   public:
    explicit Watching(NarrowUse& use);
    ~Watching();
    Watching(const Watching&) = delete;
    Watching& operator=(const Watching&) = delete;

   private:
    at::CallbackHandle handle_;
  };

  // Whether an operator has taken the parameter in what was watched, and all that did cast it.
  bool only_narrow(std::size_t parameter) const { return uses_[parameter] == kNarrow; }

 private:
  static constexpr std::uint8_t kNarrow = 1, kOther = 2;
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function);
  void add(const at::Tensor& input, std::uint8_t use);

  std::unordered_map<const at::TensorImpl*, std::size_t> index_;  // of parameters and their tied tensors
  std::vector<std::uint8_t> uses_;
};

}  // namespace dtrain::train

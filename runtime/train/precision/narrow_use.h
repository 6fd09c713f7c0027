// Which parameters autocast always casts: those that only matrix products and convolutions use, as they are or
// transposed. The model may compute with their shadows instead, with the same bits and without any cast. Training
// thread.
//
// Autocast casts a parameter once in a forward pass, and a view of it (Linear transposes its weight) each time it is
// used: then the gradients of several uses are added up in float32. In the shadow they would be added up in its type,
// so a parameter that is cast more than once in this way stays as it is.
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

  // Whether an operator has taken the parameter in what was watched, and the bits stay in the shadow.
  bool only_narrow(std::size_t parameter) const;

 private:
  struct Uses {
    bool narrow = false;  // by operators that cast it
    bool other = false;
    int casts = 0;       // in this watching
    int most_casts = 0;  // in one watching: itself once, each view each time
    bool cast_itself = false;
  };
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function);
  static void see_end(const at::RecordFunction& function, at::ObserverContext* context);
  bool inside_autocast_kernel() const;
  void add(const at::Tensor& input, bool narrow);

  const bool on_host_;
  std::unordered_map<const at::TensorImpl*, std::size_t> index_;  // of parameters and their tied tensors
  std::unordered_map<const at::TensorImpl*, std::size_t> views_;  // of them, in this watching
  std::vector<at::Tensor> kept_;  // those views, so that no other tensor is taken for one
  std::vector<Uses> uses_;
};

}  // namespace dtrain::train

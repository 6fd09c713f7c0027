// Finds the parameters that autocast always casts: only matrix products and convolutions use them, plain or transposed.
// The model may compute with their shadows instead, with the same bits and without any cast. Training thread.
//
// Autocast casts a parameter once in a forward pass, but a view of it (Linear transposes its weight) at each use: then
// the gradients of several uses are added in float32. With a shadow they would be added in its type, so a parameter
// that is cast more than once in this way gets no shadow.
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

  // During its life, watches the operators that the calling thread calls under Autocast. One at a time in a thread.
  class Watching {
   public:
    explicit Watching(NarrowUse& use);
    ~Watching();
    Watching(const Watching&) = delete;
    Watching& operator=(const Watching&) = delete;

   private:
    at::CallbackHandle handle_;
  };

  // True if watched operators have used the parameter and its shadow gives the same bits.
  bool only_narrow(std::size_t parameter) const;

 private:
  struct Uses {
    bool narrow = false;  // by operators that cast it
    bool other = false;
    int casts = 0;       // in this watching
    int most_casts = 0;  // in one watching: the parameter once, each use of a view
    bool cast_itself = false;
  };
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function);
  static void see_end(const at::RecordFunction& function, at::ObserverContext* context);
  bool inside_autocast_kernel() const;
  void add(const at::Tensor& input, bool narrow);

  const bool on_host_;
  std::unordered_map<const at::TensorImpl*, std::size_t> index_;  // of parameters and their tied tensors
  std::unordered_map<const at::TensorImpl*, std::size_t> views_;  // views of them, in this watching
  std::vector<at::Tensor> kept_;  // holds these views, so that no other tensor gets the address of one
  std::vector<Uses> uses_;
};

}  // namespace dtrain::train

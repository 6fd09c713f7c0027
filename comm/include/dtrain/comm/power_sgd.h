// What the forms of powersgd have in common: this library's, on the CPU, and that of tensor operations in
// runtime/train. Plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtrain::comm {

// The rank at which a gradient of rows x columns is compressed; 0: it travels as it is, for that would not halve its
// bytes. The same choice as PyTorch's powerSGD_hook.
std::size_t power_sgd_rank(std::size_t rows, std::size_t columns, int rank);

// The `count` values of the first Q of gradient `tensor`: about normal, and alike on every machine.
std::vector<float> first_power_sgd_factor(std::uint64_t seed, std::size_t tensor, std::size_t count);

}  // namespace dtrain::comm

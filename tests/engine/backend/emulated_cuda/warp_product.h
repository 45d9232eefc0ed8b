// A warp of the emulated GPU for tests: what runs on it lives in a library of its own, as kernels
// do.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace dsat::engine {

// How the operands of a product get into registers.
enum class OperandSource : uint8_t {
  kLayout,      // As the PTX ISA's tables of mma.m16n8k16 say, element by element.
  kRows,        // By ldmatrix; b from b^T, row by row.
  kTransposed,  // The same, but b from its own rows, transposed while it is loaded.
};

// c (16, 8) = a (16, 16) * b (16, 8) + c, all row by row; bits of bf16, or of f16. c is put
// together by the table.
void WarpProduct(std::vector<float>& c, const std::vector<uint16_t>& a,
                 const std::vector<uint16_t>& b, bool bf16, OperandSource source);

// The 16 bytes of a copy's destination: before, and after it was waited for.
struct CopyStates {
  std::array<uint8_t, 16> before, after;
};
CopyStates CopyOf(const std::array<uint8_t, 16>& from, bool valid);

}  // namespace dsat::engine

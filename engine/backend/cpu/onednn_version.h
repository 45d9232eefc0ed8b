// The differences between oneDNN 2 and oneDNN 3 that the callers of oneDNN would see.
#ifndef DSAT_ENGINE_BACKEND_CPU_ONEDNN_VERSION_H_
#define DSAT_ENGINE_BACKEND_CPU_ONEDNN_VERSION_H_

#include <dnnl.hpp>

namespace dsat::engine {

// Makes the description of a primitive such as dnnl::matmul. `operands` are the arguments of its
// oneDNN 2 descriptor, in that order. Throws dnnl::error if the library has no implementation.
template <typename Primitive, typename... Operands>
typename Primitive::primitive_desc Describe(const dnnl::engine& engine,
                                            const dnnl::primitive_attr& attributes,
                                            const Operands&... operands) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(engine, operands..., attributes);
#else
  return typename Primitive::primitive_desc({operands...}, attributes, engine);
#endif
}

// Makes the description of a backward primitive; `forward` describes its forward pass.
template <typename Primitive, typename Forward, typename... Operands>
typename Primitive::primitive_desc DescribeBackward(const dnnl::engine& engine,
                                                    const dnnl::primitive_attr& attributes,
                                                    const Forward& forward,
                                                    const Operands&... operands) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(engine, operands..., forward, attributes);
#else
  return typename Primitive::primitive_desc({operands...}, attributes, engine, forward);
#endif
}

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CPU_ONEDNN_VERSION_H_

// Types of numbers, as CUDA's library_types.h counts them.
#pragma once

enum cudaDataType { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };

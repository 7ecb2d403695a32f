// SPDX-License-Identifier: Apache-2.0

use crate::error::invalid;
use crate::{sys, DType, Result};
use std::marker::PhantomData;
use std::mem::{size_of, size_of_val};
use std::os::raw::c_void;

/// What rows and stores are made of: `f64`, `f32`, and `u16` for the bits of f16 and bf16.
pub trait Element: Copy + sealed::Sealed {}

pub(crate) mod sealed {
    use crate::DType;
    pub trait Sealed {
        /// Whether elements of this type are kept as `Self`.
        fn keeps(dtype: DType) -> bool;
    }
    impl Sealed for f64 {
        fn keeps(dtype: DType) -> bool {
            dtype == DType::F64
        }
    }
    impl Sealed for f32 {
        fn keeps(dtype: DType) -> bool {
            dtype == DType::F32
        }
    }
    impl Sealed for u16 {
        fn keeps(dtype: DType) -> bool {
            matches!(dtype, DType::F16 | DType::Bf16)
        }
    }
    impl Sealed for i8 {
        fn keeps(dtype: DType) -> bool {
            dtype == DType::Int8
        }
    }
    impl Sealed for u8 {
        fn keeps(dtype: DType) -> bool {
            matches!(dtype, DType::E4M3 | DType::Opaque)
        }
    }
}
impl Element for f64 {}
impl Element for f32 {}
impl Element for u16 {}
impl Element for i8 {}
impl Element for u8 {}

/// What rows of both kinds have.
#[derive(Clone, Copy, Debug)]
struct Shape {
    dtype: DType,
    bytes: usize,
    num_tokens: usize,
    num_heads: usize,
    head_dim: usize,
    token_stride: usize,
    head_stride: usize,
}

impl Shape {
    fn new(dtype: DType, bytes: usize, shape: [usize; 3]) -> Shape {
        let [num_tokens, num_heads, head_dim] = shape;
        let head_stride = head_dim.saturating_mul(dtype.bytes());
        let token_stride = head_stride.saturating_mul(num_heads);
        Shape { dtype, bytes, num_tokens, num_heads, head_dim, token_stride, head_stride }
    }

    /// Whether `num_layers` of these rows, `layer_stride` bytes apart, lie within the slice. A C
    /// call touches nothing else. The sum is made in u128, where it cannot overflow.
    fn check(&self, name: &str, num_layers: usize, layer_stride: usize) -> Result<()> {
        if self.num_tokens == 0 || self.num_heads == 0 || self.head_dim == 0 || num_layers == 0 {
            return Ok(()); // nothing is touched; C says what it thinks of it
        }
        let span = |n: usize, stride: usize| (n as u128 - 1) * stride as u128;
        let row = self.head_dim as u128 * self.dtype.bytes() as u128;
        // Each term is below 2^128 / 4 since usize has 64 bits at most: 2^63 * 2^63 * 4.
        let need = span(num_layers, layer_stride)
            .saturating_add(span(self.num_tokens, self.token_stride))
            .saturating_add(span(self.num_heads, self.head_stride))
            .saturating_add(row);
        if need > self.bytes as u128 {
            return invalid(format!(
                "{name} of {} tokens, {} heads and {} elements needs {need} bytes, the slice has {}",
                self.num_tokens, self.num_heads, self.head_dim, self.bytes
            ));
        }
        Ok(())
    }

    fn to_c(self) -> sys::kvfolio_rows {
        let size = |n: usize| i32::try_from(n).unwrap_or(-1);
        let stride = |n: usize| i64::try_from(n).unwrap_or(-1);
        sys::kvfolio_rows {
            struct_size: size_of::<sys::kvfolio_rows>() as u32,
            dtype: self.dtype as i32,
            num_tokens: size(self.num_tokens),
            num_heads: size(self.num_heads),
            head_dim: size(self.head_dim),
            reserved: 0,
            token_stride: stride(self.token_stride),
            head_stride: stride(self.head_stride),
        }
    }
}

macro_rules! rows {
    ($name:ident, $pointer:ident, $as_pointer:ident $(, $mut:ident)?) => {
        impl std::fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{} of {:?} {:?}", stringify!($name), self.shape.dtype, self.shape())
            }
        }

        impl<'a> $name<'a> {
            fn new<T>(dtype: DType, data: &'a $($mut)? [T], shape: [usize; 3]) -> Self {
                let shape = Shape::new(dtype, size_of_val(data), shape);
                $name { data: data.$as_pointer().cast(), shape, _slice: PhantomData }
            }
            /// Rows of f64; the shape is `[tokens, heads, elements]`.
            pub fn f64(data: &'a $($mut)? [f64], shape: [usize; 3]) -> Self {
                Self::new(DType::F64, data, shape)
            }
            /// Rows of f32.
            pub fn f32(data: &'a $($mut)? [f32], shape: [usize; 3]) -> Self {
                Self::new(DType::F32, data, shape)
            }
            /// Rows of f16, as bits.
            pub fn f16(data: &'a $($mut)? [u16], shape: [usize; 3]) -> Self {
                Self::new(DType::F16, data, shape)
            }
            /// Rows of bf16, as bits.
            pub fn bf16(data: &'a $($mut)? [u16], shape: [usize; 3]) -> Self {
                Self::new(DType::Bf16, data, shape)
            }
            /// Rows of bytes that only the engine knows, for caches of [`DType::Opaque`].
            pub fn bytes(data: &'a $($mut)? [u8], shape: [usize; 3]) -> Self {
                Self::new(DType::Opaque, data, shape)
            }
            /// Rows with gaps: bytes from one token, and from one head, to the next one. Both 0:
            /// without gaps, as in C.
            #[must_use]
            pub fn strides(mut self, token: usize, head: usize) -> Self {
                if (token, head) != (0, 0) {
                    self.shape.token_stride = token;
                    self.shape.head_stride = head;
                }
                self
            }
            pub(crate) fn dtype(&self) -> DType {
                self.shape.dtype
            }
            pub(crate) fn shape(&self) -> [usize; 3] {
                [self.shape.num_tokens, self.shape.num_heads, self.shape.head_dim]
            }
            pub(crate) fn check(&self, name: &str) -> Result<()> {
                self.shape.check(name, 1, 0)
            }
            pub(crate) fn pointer(&self) -> *$pointer c_void {
                self.data
            }
            pub(crate) fn as_c(&self) -> sys::kvfolio_rows {
                self.shape.to_c()
            }
        }
    };
}

/// Rows to read: `[tokens, heads, elements]` of a slice, elements contiguous. Every call checks
/// that they lie within the slice.
///
/// ```
/// use kvfolio::{convert, Rows, RowsMut};
///
/// let pairs = [1.0f32, 2.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0]; // two tokens of two elements, with gaps
/// let mut halves = [0u16; 4];
/// convert(Rows::f32(&pairs, [2, 1, 2]).strides(16, 8), RowsMut::bf16(&mut halves, [2, 1, 2]))?;
/// assert_eq!(halves, [0x3f80, 0x4000, 0x4040, 0x4080]);
/// let short = Rows::f32(&pairs, [3, 1, 4]);
/// let error = convert(short, RowsMut::f16(&mut [0; 12], [3, 1, 4])).unwrap_err();
/// assert_eq!(error.message(), "src of 3 tokens, 1 heads and 4 elements needs 48 bytes, \
///                              the slice has 32");
/// let mut doubles = [0.0f64; 2];
/// convert(Rows::f16(&[0x3c00, 0x4000], [1, 1, 2]), RowsMut::f64(&mut doubles, [1, 1, 2]))?;
/// convert(Rows::bf16(&[0x3f80, 0x4000], [1, 1, 2]), RowsMut::f64(&mut doubles, [1, 1, 2]))?;
/// convert(Rows::f64(&[1.0, 2.0], [1, 1, 2]), RowsMut::f32(&mut [0.0; 2], [1, 1, 2]))?;
/// assert_eq!(doubles, [1.0, 2.0]);
/// # Ok::<(), kvfolio::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    data: *const c_void,
    shape: Shape,
    _slice: PhantomData<&'a [u8]>,
}
rows!(Rows, const, as_ptr);

/// Rows to write; as [`Rows`]. They must not overlap each other, which calls check.
pub struct RowsMut<'a> {
    data: *mut c_void,
    shape: Shape,
    _slice: PhantomData<&'a mut [u8]>,
}
rows!(RowsMut, mut, as_mut_ptr, mut);

impl RowsMut<'_> {
    /// For rows of several layers, `layer_stride` bytes apart.
    pub(crate) fn check_layers(&self, name: &str, n: usize, layer_stride: usize) -> Result<()> {
        self.shape.check(name, n, layer_stride)
    }
}

// SAFETY: they are slices.
unsafe impl Send for Rows<'_> {}
unsafe impl Sync for Rows<'_> {}
unsafe impl Send for RowsMut<'_> {}
unsafe impl Sync for RowsMut<'_> {}

/// Rows that may be missing, as C takes them: the pointer, and a struct that the caller keeps.
pub(crate) fn or_null(rows: Option<&Rows>) -> (*const c_void, Option<sys::kvfolio_rows>) {
    rows.map_or((std::ptr::null(), None), |rows| (rows.pointer(), Some(rows.as_c())))
}
pub(crate) fn or_null_mut(rows: Option<&RowsMut>) -> (*mut c_void, Option<sys::kvfolio_rows>) {
    rows.map_or((std::ptr::null_mut(), None), |rows| (rows.pointer(), Some(rows.as_c())))
}
pub(crate) fn as_pointer<T>(value: &Option<T>) -> *const T {
    value.as_ref().map_or(std::ptr::null(), |value| value)
}

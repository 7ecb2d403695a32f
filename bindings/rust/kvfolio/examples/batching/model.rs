// SPDX-License-Identifier: Apache-2.0
//
// A small transformer with random weights: grouped-query attention between two projections, a
// residual and a norm. plain() runs it over whole arrays of f32, without kvfolio.

pub const LAYERS: usize = 2;
pub const Q_HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const HEAD_DIM: usize = 16;
pub const VOCABULARY: usize = 61;
const WIDTH: usize = 32;

/// A number from a seed (splitmix64).
pub fn mix(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// From -1 to 1.
pub fn unit(seed: u64) -> f32 {
    (mix(seed) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

struct Matrix {
    cols: usize,
    weights: Vec<f32>, // [rows, cols]
}

impl Matrix {
    fn new(rows: usize, cols: usize, seed: u64) -> Matrix {
        let scale = (3.0 / cols as f32).sqrt();
        let weight = |i| scale * unit(seed << 32 | i as u64);
        Matrix { cols, weights: (0..rows * cols).map(weight).collect() }
    }

    /// Appends the product with x to `out`.
    fn multiply(&self, x: &[f32], out: &mut Vec<f32>) {
        let dot = |row: &[f32]| row.iter().zip(x).map(|(a, b)| a * b).sum::<f32>();
        out.extend(self.weights.chunks(self.cols).map(dot));
    }
}

pub struct Model {
    q: Vec<Matrix>,
    k: Vec<Matrix>,
    v: Vec<Matrix>,
    out: Vec<Matrix>,
    embedding: Matrix,
    head: Matrix,
}

/// Rows of q, k and v of some tokens: `[tokens, heads, HEAD_DIM]`.
pub struct Projected {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

impl Model {
    pub fn new() -> Model {
        let layers = |rows, cols, seed: u64| {
            (0..LAYERS as u64).map(|layer| Matrix::new(rows, cols, seed + layer)).collect()
        };
        Model {
            q: layers(Q_HEADS * HEAD_DIM, WIDTH, 10),
            k: layers(KV_HEADS * HEAD_DIM, WIDTH, 20),
            v: layers(KV_HEADS * HEAD_DIM, WIDTH, 30),
            out: layers(WIDTH, Q_HEADS * HEAD_DIM, 40),
            embedding: Matrix::new(VOCABULARY, WIDTH, 50),
            head: Matrix::new(VOCABULARY, WIDTH, 60),
        }
    }

    pub fn embed(&self, token: i32, position: i32) -> Vec<f32> {
        let row = &self.embedding.weights[token as usize * WIDTH..][..WIDTH];
        let wave = |i: usize| (position as f32 / 10f32.powf(i as f32 / 8.0)).sin();
        row.iter().enumerate().map(|(i, weight)| 3.0 * weight + wave(i)).collect()
    }

    pub fn project(&self, layer: usize, x: &[Vec<f32>]) -> Projected {
        let rows = |matrix: &Matrix| {
            let mut out = Vec::new();
            x.iter().for_each(|x| matrix.multiply(x, &mut out));
            out
        };
        Projected { q: rows(&self.q[layer]), k: rows(&self.k[layer]), v: rows(&self.v[layer]) }
    }

    /// Adds what attention gave to x, and normalizes.
    pub fn finish_layer(&self, layer: usize, x: &mut [f32], attended: &[f32]) {
        let mut y = Vec::new();
        self.out[layer].multiply(attended, &mut y);
        x.iter_mut().zip(&y).for_each(|(a, b)| *a += b);
        let norm = (x.iter().map(|a| a * a).sum::<f32>() / WIDTH as f32 + 1e-5).sqrt();
        x.iter_mut().for_each(|a| *a /= norm);
    }

    pub fn logits(&self, x: &[f32]) -> Vec<f32> {
        let mut out = Vec::new();
        self.head.multiply(x, &mut out);
        out
    }

    /// The logits behind each token of one sequence.
    pub fn plain(&self, tokens: &[i32]) -> Vec<Vec<f32>> {
        let embed = |(position, &token)| self.embed(token, position);
        let mut x: Vec<Vec<f32>> = (0..).zip(tokens).map(embed).collect();
        for layer in 0..LAYERS {
            let rows = self.project(layer, &x);
            for (t, x) in x.iter_mut().enumerate() {
                self.finish_layer(layer, x, &plain_attention(&rows, t));
            }
        }
        x.iter().map(|x| self.logits(x)).collect()
    }
}

/// Token t reads the tokens up to itself.
fn plain_attention(rows: &Projected, t: usize) -> Vec<f32> {
    let mut out = vec![0f32; Q_HEADS * HEAD_DIM];
    for head in 0..Q_HEADS {
        let kv = head / (Q_HEADS / KV_HEADS);
        let row =
            |rows: &[f32], u: usize| rows[(u * KV_HEADS + kv) * HEAD_DIM..][..HEAD_DIM].to_vec();
        let q = &rows.q[(t * Q_HEADS + head) * HEAD_DIM..][..HEAD_DIM];
        let score = |u| row(&rows.k, u).iter().zip(q).map(|(a, b)| a * b).sum::<f32>();
        let scores: Vec<f32> = (0..=t).map(|u| score(u) / (HEAD_DIM as f32).sqrt()).collect();
        let top = scores.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = scores.iter().map(|score| (score - top).exp()).sum();
        for (u, score) in scores.iter().enumerate() {
            let weight = (score - top).exp() / sum;
            let to = &mut out[head * HEAD_DIM..][..HEAD_DIM];
            to.iter_mut().zip(row(&rows.v, u)).for_each(|(out, v)| *out += weight * v);
        }
    }
    out
}

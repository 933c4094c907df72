// An HTTP server and client of node's, for runtimes.py:
//   http.js serve HOST PORT DIR [WORKERS]   files of DIR by GET; what comes by POST is sent back. With WORKERS by a cluster,
//                                           whose first process accepts and hands the connections round
//   http.js get URL SHA256 TIMES            over one connection
//   http.js echo URL BYTES CONNECTIONS      sends so many bytes on each connection at once and wants them back
'use strict';
const cluster = require('cluster');
const crypto = require('crypto');
const fs = require('fs');
const http = require('http');
const path = require('path');

function serve(host, port, dir, workers) {
  if (workers && cluster.isPrimary) {
    cluster.schedulingPolicy = cluster.SCHED_RR;
    for (let i = 0; i < workers; i++) cluster.fork();
    process.on('SIGTERM', () => cluster.disconnect(() => process.exit(0)));
    return;
  }
  const server = http.createServer((ask, answer) => {
    if (ask.method === 'POST') {
      ask.pipe(answer);
      return;
    }
    const file = path.join(dir, path.basename(ask.url));
    answer.setHeader('Content-Length', fs.statSync(file).size);
    fs.createReadStream(file, { highWaterMark: 1 << 18 }).pipe(answer);
  });
  server.listen(port, host);
  process.on('SIGTERM', () => {
    if (cluster.isWorker) return;       // the first process says when
    server.close(() => process.exit(0));
    server.closeIdleConnections();
  });
}

function fail(text) {
  console.error(text);
  process.exit(1);
}

function get(agent, url, wanted, times) {
  if (times === 0) {
    agent.destroy();
    return;
  }
  http.get(url, { agent }, (answer) => {
    if (answer.statusCode !== 200) fail(`status ${answer.statusCode}`);
    const hash = crypto.createHash('sha256');
    answer.on('data', (piece) => hash.update(piece));
    answer.on('end', () => {
      if (hash.digest('hex') !== wanted) fail('other bytes arrived than were sent');
      get(agent, url, wanted, times - 1);
    });
  }).on('error', (e) => fail(`get: ${e.message}`));
}

function echo(url, bytes, connections) {
  for (let i = 0; i < connections; i++) {
    const body = crypto.randomBytes(bytes);
    const ask = http.request(url, { method: 'POST', agent: false }, (answer) => {
      const parts = [];
      answer.on('data', (piece) => parts.push(piece));
      answer.on('end', () => {
        if (!Buffer.concat(parts).equals(body)) fail('other bytes came back than were sent');
      });
    }).on('error', (e) => fail(`echo: ${e.message}`));
    // Piece by piece, as the socket takes them.
    let at = 0;
    const more = () => {
      while (at < bytes) {
        const piece = body.subarray(at, at += 10000);
        if (!ask.write(piece)) {
          ask.once('drain', more);
          return;
        }
      }
      ask.end();
    };
    more();
  }
}

const [what, ...words] = process.argv.slice(2);
if (what === 'serve') serve(words[0], Number(words[1]), words[2], Number(words[3] || 0));
else if (what === 'get') get(new http.Agent({ keepAlive: true, maxSockets: 1 }), words[0], words[1], Number(words[2]));
else if (what === 'echo') echo(words[0], Number(words[1]), Number(words[2]));
else fail(`http.js: what is ${what}?`);

// Keeps a page current. The server sends parts of the page as HTML, in which all text of others is escaped; they are merged
// into the document, so that focus, open details and what is being typed stay. Forms marked `data-live` are sent without
// leaving the page: its stream shows what has come of it.

const body = document.body
const element = (id) => document.getElementById(id)

// Merging

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key || '' : '')
const isAlike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b)
const KEPT = new Set(['open', 'data-filtered'])

function mergeAttributes(into, from) {
  for (const { name, value } of from.attributes) if (into.getAttribute(name) !== value) into.setAttribute(name, value)
  for (const { name } of [...into.attributes]) if (!from.hasAttribute(name) && !KEPT.has(name)) into.removeAttribute(name)
}

function merge(into, from) {
  if (into.nodeType !== Node.ELEMENT_NODE) {
    if (into.nodeValue !== from.nodeValue) into.nodeValue = from.nodeValue
    return
  }
  if (into.isEqualNode(from)) return
  mergeAttributes(into, from)
  mergeChildren(into, from)
}

function mergeChildren(into, from) {
  const keyed = new Map()
  for (const child of into.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child)
  let place = into.firstChild
  for (const wanted of [...from.childNodes]) {
    const key = keyOf(wanted)
    const known = key ? keyed.get(key) : place
    if (known && isAlike(known, wanted)) {
      if (known !== place) into.insertBefore(known, place)
      place = known.nextSibling
      merge(known, wanted)
    } else {
      into.insertBefore(wanted, place)
    }
  }
  while (place) {
    const next = place.nextSibling
    place.remove()
    place = next
  }
}

function show(regions) {
  const focused = document.activeElement
  const region = focused && focused.closest('[data-region]')
  for (const [id, html] of Object.entries(regions)) {
    const into = element(id)
    if (!into) continue
    const before = new Set([...into.querySelectorAll('[data-announce]')].map((each) => each.dataset.key))
    const parsed = new DOMParser().parseFromString(html, 'text/html').body
    mergeChildren(into, parsed)
    const arrived = [...into.querySelectorAll('[data-announce]')].filter((each) => !before.has(each.dataset.key))
    if (arrived.length) announce(arrived.map((each) => each.dataset.announce).join(' '))
  }
  // What had the focus is gone, such as a request that was answered elsewhere: stay near, not at the top of the page.
  if (region && !document.contains(focused)) {
    const near = region.querySelector('h2, h3') || element('content')
    near.tabIndex = -1
    near.focus({ preventScroll: true })
  }
  filter()
  tick()
  countInTitle()
}

const announce = (text) => { element('announcements').textContent = text }

const title = document.title
function countInTitle() {
  const count = [...document.querySelectorAll('[data-count]')].reduce((sum, each) => sum + Number(each.dataset.count), 0)
  document.title = count ? `(${count}) ${title}` : title
}

// Times: `data-until` counts down to a moment, `data-since` counts up from one; both in milliseconds since the epoch

const two = (number) => String(number).padStart(2, '0')
function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds))
  const hours = Math.floor(whole / 3600)
  const rest = `${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`
  return hours ? `${hours}:${rest}` : rest
}

function tick() {
  const now = Date.now()
  for (const each of document.querySelectorAll('[data-until]')) {
    const left = (Number(each.dataset.until) - now) / 1000
    each.textContent = clock(left)
    each.classList.toggle('urgent', left < 15)
  }
  for (const each of document.querySelectorAll('[data-since]')) each.textContent = clock((now - Number(each.dataset.since)) / 1000)
}
setInterval(tick, 1000)

// A list that is filtered while typing: `data-filter` is the id of the list, whose items have `data-text`

function filter() {
  for (const input of document.querySelectorAll('input[data-filter]')) {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean)
    const list = element(input.dataset.filter)
    if (!list) continue
    let shown = 0
    for (const item of list.querySelectorAll('[data-text]')) {
      const isFound = words.every((word) => item.dataset.text.toLowerCase().includes(word))
      item.toggleAttribute('data-filtered', !isFound)
      shown += isFound ? 1 : 0
    }
    const count = element(`${input.dataset.filter}-count`)
    if (count) count.textContent = String(shown)
  }
}
document.addEventListener('input', (event) => event.target.matches('input[data-filter]') && filter())

// The stream. Browsers open few connections to one address, so of all hidden pages only one keeps its stream.

let source = null
let release = null
let retry = 0

function setState(state) {
  const shown = element('connection')
  if (!shown) return
  shown.dataset.state = state
  element('connection-text').textContent = shown.dataset[state] || state
}

function connect() {
  if (source || isOver) return
  source = new EventSource(body.dataset.liveUrl)
  source.addEventListener('open', () => setState('live'))
  source.addEventListener('regions', (event) => {
    setState('live')
    show(JSON.parse(event.data))
  })
  source.addEventListener('ended', over)
  source.addEventListener('error', lost)
}

function close() {
  if (source) source.close()
  source = null
}

async function lost() {
  close()
  if (isOver) return
  setState('lost')
  clearTimeout(retry)
  try {
    const answer = await fetch(body.dataset.sessionUrl, { cache: 'no-store' })
    if (answer.status === 401) return over()
    retry = setTimeout(connect, 300)
  } catch {
    retry = setTimeout(lost, 1500)
  }
}

let isOver = false
function over() {
  isOver = true
  close()
  fail('')
  setState('over')
  const box = element('session-over')
  box.hidden = false
  for (const each of document.querySelectorAll('main button, main input, main select, main textarea')) each.disabled = true
  box.querySelector('h2').focus()
}

async function hide() {
  if (!navigator.locks) return close()
  await navigator.locks.request(`a2c-hidden:${location.host}`, { ifAvailable: true }, (lock) => {
    if (!lock) return close()
    return new Promise((resolve) => { release = resolve })
  })
}

if (body.dataset.liveUrl) {
  connect()
  tick()
  countInTitle()
  document.addEventListener('visibilitychange', () => {
    if (document.visibilityState === 'hidden') return void hide()
    if (release) release()
    release = null
    connect()
  })
}

// Forms

function fail(text) {
  const box = element('failure')
  element('failure-text').textContent = text
  box.hidden = !text
}

const closing = element('failure-close')
if (closing) closing.addEventListener('click', () => fail(''))

document.addEventListener('submit', async (event) => {
  const form = event.target
  if (!form.hasAttribute('data-live')) return
  event.preventDefault()
  // By its attribute: a field named "action" would be `form.action`.
  const data = new URLSearchParams(new FormData(form, event.submitter))
  const buttons = [...form.querySelectorAll('button')]
  for (const each of buttons) each.setAttribute('aria-disabled', 'true')
  if (form.dataset.busy) return
  form.dataset.busy = 'yes'
  try {
    const answer = await fetch(form.getAttribute('action'), { method: 'POST', body: data, headers: { 'X-A2C-Console': '1' } })
    if (answer.status === 401) return over()
    fail(answer.ok ? '' : await answer.text())
  } catch {
    fail(element('connection').dataset.lost)
  } finally {
    delete form.dataset.busy
    for (const each of buttons) each.removeAttribute('aria-disabled')
  }
})
